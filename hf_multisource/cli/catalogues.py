"""`hf-multisource catalogues`: make training data from localization catalogues of several languages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hf_multisource.cli import options
from hf_multisource.cli.command import make_main
from hf_multisource.data.catalogues import Selection, write_catalogue_rows

NAME = "catalogues"


def catalogues(
    pattern: Annotated[
        str, typer.Argument(help="Folder, archive or file of the catalogues, with {lang} for the language's code.")
    ],
    languages: Annotated[
        list[str],
        typer.Option("--languages", metavar="LANGUAGE[=CODE] ...", help="Columns; CODE: as in paths (en=en-GB)."),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder to write to, new or empty.")],
    paths: Annotated[
        list[str] | None,
        typer.Option("--paths", metavar="LANGUAGE=PATH ...", help="Places that differ from the pattern."),
    ] = None,
    source_language: Annotated[
        str,
        typer.Option(
            "--source_language", help="Language of messages in gettext, Qt and XLIFF, and of files without a code."
        ),
    ] = "en",
    target: Annotated[str | None, typer.Option("--target", help="Language that no row may lack.")] = None,
    drop_copies: Annotated[
        bool, typer.Option("--drop_copies", help="Drop target texts that equal only the text of the source language.")
    ] = False,
    min_languages: Annotated[int, typer.Option("--min_languages", help="Smallest number of languages in a row.")] = 2,
    dev: Annotated[float, typer.Option("--dev", help="Share of the dev split, 0 for none.")] = 0.1,
    test: Annotated[float, typer.Option("--test", help="Share of the test split, 0 for none.")] = 0.1,
    split_by: Annotated[
        str, typer.Option("--split_by", help="Split whole files, or messages, for projects with few files.")
    ] = "files",
) -> None:
    """Make parallel text from localization catalogues, aligned by file and key, with splits.

    \b
        hf-multisource catalogues 'l10n/{lang}' --languages en de cs hsb dsb --target dsb --out data/l10n
        hf-multisource catalogues 'firefox-esr-l10n-{lang}_*.deb' --languages en=en-GB de cs hsb dsb --out data/firefox
        hf-multisource catalogues 'res/values-{lang}' --paths en=res/values --languages en de cs --out data/app

    The command reads .ftl, .po, .pot, .mo, .xlf, .xliff, .properties, .ts, .dtd and Android's strings.xml, from
    folders, .zip, .xpi, .jar and .deb. Missing, fuzzy and empty texts are absent. The command prints the count of each
    rule, and writes `<split>.<language>`, `keys.json` with file, key and part of each line, and `counts.json` to OUT.
    """
    names, codes = [], {}
    for given in languages:
        name, equals, code = given.partition("=")
        if not name or (equals and not code):
            raise ValueError(f"--languages {given}: write LANGUAGE or LANGUAGE=CODE, such as en=en-GB")
        names.append(name)
        if equals:
            codes[name] = code
    selection = Selection(
        languages=names,
        codes=codes,
        paths=options.parse_pairs("paths", paths or (), "en=res/values"),
        source_language=source_language,
        target=target,
        drop_copies=drop_copies,
        min_languages=min_languages,
        dev=dev,
        test=test,
        split_by=split_by,
    )
    print(write_catalogue_rows(pattern, out, selection).describe())
    print(f"{out} is written")


main = make_main(NAME, catalogues)

if __name__ == "__main__":
    main()
