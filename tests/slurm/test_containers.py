"""Jobs whose Python runs in a container, which has no command of Slurm: by a prefix as Apptainer's, and by pyxis.

Debian has neither. bubblewrap is the container, and a wrapper of srun takes pyxis' options as the plugin would.
"""

import shlex
import shutil
import subprocess

import pytest

from tests.workflow.checkout import write_commands

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

# an option of srun with a value has it after `=`, so the first other word begins the command
PYXIS = """
options=() image=()
while [[ $1 == -* ]]; do
    case $1 in
        --container-image=*) image=("${{1#*=}}") ;;
        --container-mounts=*) ;;
        *) options+=("$1") ;;
    esac
    shift
done
exec {srun} "${{options[@]}}" "${{image[@]}}" "$@"
"""


@pytest.fixture
def image(cluster, place):
    """A command that runs others in a container and notes them in `contained`; there is no Slurm in it."""
    hidden = [shutil.which("srun"), shutil.which("scontrol")]
    words = ["bwrap", "--dev-bind", "/", "/", "--tmpfs", str(cluster.bin)]
    words += [word for path in hidden for word in ("--ro-bind", "/dev/null", path)]
    if shutil.which("bwrap") is None or subprocess.run([*words, "true"], check=False, capture_output=True).returncode:
        pytest.skip("bubblewrap is not installed, or may make no namespace here")
    script = f'echo "${{2-}} ${{3-}}" >> {shlex.quote(str(place.path))}/contained\nexec {shlex.join(words)} "$@"'
    folder = place.path.parent / "bin"  # words of CARAVAN_CONTAINER have no spaces
    write_commands(folder, {"image.sqsh": script, "srun": PYXIS.format(srun=cluster.bin / "srun")})
    return folder / "image.sqsh"


@pytest.mark.parametrize("kind", ["CARAVAN_CONTAINER", "CARAVAN_SRUN"])
def test_all_stages_run_in_a_container_on_two_nodes(place, image, kind):
    place.fill(nodes=2, ranks=1)
    settings = {"CARAVAN_CONTAINER": str(image), "CARAVAN_SRUN": f"--container-image={image} --container-mounts=/tmp"}
    site = place.path.parent / "environment.sh"
    site.write_text(f"export {kind}={shlex.quote(settings[kind])}\n")
    path = place.cluster.environment["PATH"]
    place.environment = {"CARAVAN_SITE": str(site), "PATH": f"{image.parent}:{path}"}
    place.make("results/runs/tiny/eval/00000006/validation.json")
    said = (place.path / "contained").read_text()
    for stage in ("train_tokenizer", "tokenize", "convert", "evaluate"):
        assert f"-m stages.{stage}\n" in said
    assert place.nodes_of_training() == 2
