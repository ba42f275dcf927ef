"""Coursework: problem sets from their masters (`build`), and grades from submissions (`grade`)."""
