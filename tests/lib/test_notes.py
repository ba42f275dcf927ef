"""What a reader of a notebook sees of glued numbers and failed claims, and what the site's build hides."""

import pytest
from IPython.utils.capture import capture_output

from lowdim import claims
from lowdim.notes import HIDDEN, glue


@pytest.mark.parametrize(("build", "shown"), [("0", "slope = 1.04"), ("1", None)])
def test_a_glued_number_is_printed_in_a_notebook_and_hidden_on_the_site(monkeypatch, build, shown):
    monkeypatch.setenv("LOWDIM_BUILD", build)
    with capture_output() as captured:
        glue("slope", 1.0375)
    if captured.outputs:
        (output,) = captured.outputs
        bundle = output.data
    else:  # without a running kernel IPython writes the bundle itself
        bundle = eval(captured.stdout)
    assert bundle[HIDDEN + "text/plain"] == "1.04"
    assert bundle.get("text/plain") == shown


def test_a_failed_claim_tells_a_reader_how_to_go_on(monkeypatch, capsys):
    monkeypatch.delenv("LOWDIM_CLAIMS", raising=False)
    monkeypatch.setenv("LOWDIM_BUILD", "0")
    with pytest.raises(claims.ClaimFailed, match="LOWDIM_CLAIMS"):
        claims.check("a thing", 2, 1, 0.5, "derived above")
    monkeypatch.setenv("LOWDIM_CLAIMS", "record")
    claims.check("a thing", 2, 1, 0.5, "derived above")
