"""``python -m lakegc_assets.cli``: the command ``lakegc``, if it is not on the path."""

from lakegc_assets.cli.main import main

if __name__ == "__main__":
    main(prog_name="lakegc")
