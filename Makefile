# Every target prepares what it needs on a fresh machine: `make book` and `make test` are the only commands to know.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/sh

VENV   := .venv
PYTHON := $(VENV)/bin/python
READY  := $(VENV)/.ready
N      ?= 20
OUT    ?= grades.csv

.PHONY: help book test test-colab test-coursework chapter seeds bench pretrained notebooks coursework grade clean distclean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

book: $(READY) ## build the whole site into _build/html
	@$(PYTHON) -m tools.build_book

test: $(READY) ## run all tests: style, library, chapters, site in a real browser
	@$(PYTHON) -m tools.run_tests

test-colab: $(READY) ## execute every notebook on a machine like Colab's (make test: two of them)
	@$(PYTHON) -m tools.run_tests colab-all

test-coursework: $(READY) ## prove every problem set (make test: one of them)
	@$(PYTHON) -m tools.run_tests coursework-all

chapter: $(READY) ## build one chapter: make chapter NAME=information_exponent
	@$(PYTHON) -m tools.build_book --chapter "$(NAME)"

seeds: $(READY) ## repeat all claims under N other seeds: make seeds N=20 [CHAPTER=name]
	@$(PYTHON) -m tools.seeds --seeds "$(N)" $(if $(CHAPTER),--chapter "$(CHAPTER)")

bench: $(READY) ## measure speed and memory against the baselines
	@$(PYTHON) -m benchmarks --out _build/bench --strict

pretrained: $(READY) ## train the transformer that ships with the library again (about 15 minutes)
	@$(PYTHON) -m tools.pretrained

notebooks: $(READY) ## write the chapters as notebooks for Colab and Jupyter into _build/notebooks
	@$(PYTHON) -m tools.notebooks

coursework: $(READY) ## make the problem sets of a course: make coursework [SET=name] [KEY=fall26]
	@$(PYTHON) -m tools.coursework.build $(if $(SET),--set "$(SET)") $(if $(KEY),--key "$(KEY)")

grade: $(READY) ## grade submissions: make grade SET=name SUBMISSIONS=folder [OUT=grades.csv] [KEY=fall26]
	@$(PYTHON) -m tools.coursework.grade --set "$(SET)" --submissions "$(SUBMISSIONS)" --out "$(OUT)" \
		$(if $(KEY),--key "$(KEY)") $(if $(JOBS),--jobs "$(JOBS)") $(if $(MINUTES),--minutes "$(MINUTES)") \
		$(if $(MEMORY),--memory "$(MEMORY)") $(if $(UNPROTECTED),--unprotected)

clean: ## remove what was built
	rm -rf _build .pytest_cache .ruff_cache

distclean: clean ## remove the virtual environment too
	rm -rf $(VENV)

$(READY): requirements.txt pyproject.toml tools/make_venv.sh
	@sh tools/make_venv.sh $(VENV)
	@touch $@
