"""Upload an export with its model card to the Hugging Face Hub, in one commit.

    python -m tools.push results/runs/base/export/00000120 me/my-llama --private
    python -m tools.push results/runs/base/export/00000120 me/my-llama --dry-run    # only the checks, without network

The directory is checked first: the parity check passed, each file has the sha256 of its manifest, and the card is of
this export (the target `cards` writes it). The repository is made if it does not exist. Weights and tokenizer files
of an earlier upload that this export does not have are deleted by the same commit; other files stay.
manifest.json, card.json and parity.json go along as evidence, without the name of the host and its environment.

The token is that of `hf auth login`, or HF_TOKEN. An upload that was cut off is started again by the same command;
large files that are on the Hub already are not sent twice.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
from collections.abc import Sequence
from pathlib import Path

from stages.lib import files, manifest, stage
from stages.lib.errors import UserError
from stages.lib.huggingface.export_directory import ADAPTER, CARD_MANIFEST
from stages.lib.log import logger
from stages.lib.pages.card import FILE as CARD
from stages.lib.scoring.inputs import PARITY, check_unchanged
from stages.lib.space import amount

MANIFEST = "manifest.json"
OF_EXPORTS = (
    *("*.safetensors", "*.safetensors.index.json", "tokenizer*", "special_tokens_map.json", "*.jinja"),
    "*adapter_config.json",
)
"""Files on the Hub that would be read beside an export's own."""

FOLDERS = ("", f"{ADAPTER}/")

MAIN = "main"


def checked_files(directory: Path) -> list[str]:
    """Return the names of the files to upload. Raises UserError if the directory is no whole export with its card."""
    if not (directory / MANIFEST).is_file():
        raise UserError(f"{directory} has no {MANIFEST}: it must be the directory of an export")
    export = manifest.read(directory / MANIFEST, "convert")
    check_unchanged(export)
    card, described = export.directory / CARD, export.directory / CARD_MANIFEST
    remedy = "run Snakemake with the target `cards`"
    for path in (card, described):
        if not path.is_file():
            raise UserError(f"{path} is missing, and an export is uploaded with its card; {remedy}")
    identity = manifest.read(described, "describe").identity
    if identity["export"] != export.digest:
        raise UserError(f"{described} is the card of another export than {export.path}; {remedy}")
    if files.sha256_file(card) != identity["outputs"][CARD]["sha256"]:
        logger.warning("%s was edited since stages.describe wrote it", card)
    return sorted([*export.identity["outputs"], PARITY, MANIFEST, CARD_MANIFEST, CARD])


def upload(directory: Path, names: Sequence[str], arguments: argparse.Namespace) -> str:
    """Upload the files in one commit; return its URL."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    hub = HfApi()
    hub.create_repo(arguments.repo, private=arguments.private or None, exist_ok=True)
    if arguments.private and not hub.repo_info(arguments.repo).private:
        raise UserError(f"{arguments.repo} exists and is public: make it private on the Hub first, or omit --private")
    if arguments.revision != MAIN:
        hub.create_branch(arguments.repo, branch=arguments.revision, exist_ok=True)
    added = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=content_of(directory / name)) for name in names]
    # files of an earlier export in the repository that this one does not have
    uploaded = hub.list_repo_files(arguments.repo, revision=arguments.revision)
    uploaded = [name for name in uploaded if any(fnmatch.fnmatch(name, pattern) for pattern in OF_EXPORTS)]
    leftovers = [name for name in uploaded if name[: name.rfind("/") + 1] in FOLDERS and name not in names]
    deleted = [CommitOperationDelete(path_in_repo=name) for name in leftovers]
    digest = manifest.read(directory / MANIFEST).digest
    commit = hub.create_commit(
        arguments.repo,
        [*added, *deleted],
        commit_message=f"Upload {directory.name}",
        commit_description=f"Export {digest}",
        revision=arguments.revision,
    )
    return commit.commit_url


def content_of(path: Path) -> Path | bytes:
    """Return what is uploaded of a file.

    parity.json is without its greedy text, which begins with text of the corpus, and manifests are without the host and
    its environment, signed again; their digests stay.
    """
    if path.name in (MANIFEST, CARD_MANIFEST):
        source = manifest.read(path)
        record = {name: value for name, value in source.record.items() if name not in ("host", "environment")}
        return json.dumps(manifest.content(source.stage, source.identity, record), indent=1).encode()
    if path.name != PARITY:
        return path
    report = files.read_json_object(path)
    greedy = report.get("greedy", {})
    report["greedy"] = {name: value for name, value in greedy.items() if name not in ("text", "continuations")}
    return json.dumps(report, indent=2).encode()


def sentence_of(error: BaseException, repo: str) -> str | None:
    """Return why the Hub did not take the upload, in a sentence without the token; None for an error of ours."""
    from huggingface_hub import constants, errors, get_token

    while isinstance(error, RuntimeError) and error.__cause__ is not None:  # of one of several uploads
        error = error.__cause__
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.HFValidationError):
        return f"REPO must be a name as `me/my-llama`, got {repo}"
    if status == 401 and get_token() is None:
        return f"{repo} can be written only with a token, and none is set: use `hf auth login`, or set HF_TOKEN"
    if status == 401:
        return f"{repo} cannot be written: {constants.ENDPOINT} refuses the token, or does not know the repository"
    if status == 403:
        return f"{repo} cannot be written with this token: it must have write access to {repo.partition('/')[0]}"
    if status == 404:
        return f"{repo} cannot be written: {constants.ENDPOINT} has no such repository or revision"
    if status is not None:
        return f"{repo} cannot be written: {constants.ENDPOINT} answered with status {status}"
    if isinstance(error, ValueError) and CARD in str(error):
        return f"{CARD} is refused by {constants.ENDPOINT}: {' '.join(str(error).split())}"
    if isinstance(error, (errors.HTTPError, ConnectionError)):
        why = " ".join(str(error).split()) or type(error).__name__
        return f"{constants.ENDPOINT} cannot be reached: {why}; run this on a machine with internet"
    return None


def run(arguments: argparse.Namespace) -> None:
    """Check the directory, and upload it."""
    names = checked_files(arguments.directory)
    for name in names:
        print(f"{name}  {amount((arguments.directory / name).stat().st_size)}")
    if arguments.dry_run:
        print(f"{len(names)} files are whole; nothing was uploaded to {arguments.repo}")
        return
    try:
        url = upload(arguments.directory, names, arguments)
    except Exception as error:  # of huggingface_hub, httpx, hf_xet
        sentence = sentence_of(error, arguments.repo)
        if sentence is None:
            raise
        raise UserError(sentence) from None
    print(f"uploaded: {url}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = stage.parser("tools.push", __doc__)
    parser.add_argument("directory", type=Path, metavar="DIR", help="directory of an export")
    parser.add_argument("repo", metavar="REPO", help="name of the repository on the Hub, as me/my-llama")
    parser.add_argument("--private", action="store_true", help="make a new repository private")
    parser.add_argument("--revision", default=MAIN, help="branch to upload to, made if missing (default: main)")
    parser.add_argument("--dry-run", action="store_true", help="check the directory, upload nothing")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
