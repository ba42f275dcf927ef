"""The scripts behind the Makefile; run one as `python -m tools.NAME --help` from the repository root."""
