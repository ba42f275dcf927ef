"""Make sure that there is a Java, which the validator of HTML needs, and say which.

    python -m tools.ensure_java

It is installed with apt where that works without a password.
"""

import argparse
import shutil

from tools import system

PACKAGE = "default-jre-headless"


def ensure():
    """The path of a `java`, installing one if need be; ends the program if that fails."""
    if shutil.which("java") is None:
        system.apt_install(PACKAGE)
    path = shutil.which("java")
    if path is None:
        raise SystemExit(
            "The pages' HTML is validated by a Java program, and there is no Java: install one (Java 11 or later)."
        )
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    print(f"Java: {ensure()}")


if __name__ == "__main__":
    main()
