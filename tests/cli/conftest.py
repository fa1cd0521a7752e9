"""One site with plugins that go wrong in every way beside two that are sound; commands run on it, each only once."""

import functools
import json
import subprocess
import sys

import pytest

from mstar_core.testing.distributions import TOY_FILES, install, leave_empty, toy_source
from mstar_core.testing.plugins import environment

CANNOT_IMPORT = "import module_that_is_absent\n"
EXITS = "raise SystemExit(3)\n"
HOOK_RAISES = "from mstar_core import hookimpl\n\n@hookimpl\ndef mstar_models():\n    return 1 / 0\n"
TORCH_THAT_RAISES = "raise RuntimeError('torch was imported')\n"


class Site:
    """Directories of fake distributions, and the command line run against them in another process."""

    def __init__(self, root):
        self.early, self.late = root / "early", root / "late"
        self.early.mkdir()
        self.run = functools.cache(self._run)

    def toy(self, name, model, **options):
        package = name.replace("-", "_")
        return install(self.late, name, toy_source(model, package, **options), files=TOY_FILES)

    def names(self):
        return sorted({path.name.split("-")[0].replace("_", "-") for path in self.late.glob("*.dist-info")})

    def _run(self, *arguments, block=""):
        variables = environment((self.early, self.late), self.names())
        return subprocess.run(
            [sys.executable, "-m", "mstar_core", *arguments],
            check=False,
            cwd=self.early,
            env={**variables, "MSTAR_BLOCK_PLUGINS": block},
            capture_output=True,
            text=True,
            timeout=60,
        )

    def json(self, *arguments):
        """What a command prints with `--json`."""
        return json.loads(self.run(*arguments, "--json").stdout)


@pytest.fixture(scope="session")
def troubled(tmp_path_factory):
    """Sound: mstar-toy (behind an empty copy), mstar-moved (behind a stale copy). torch raises when it is imported."""
    site = Site(tmp_path_factory.mktemp("troubled"))
    (site.early / "torch.py").write_text(TORCH_THAT_RAISES)
    leave_empty(site.early, "mstar-toy")
    install(site.early, "mstar-moved", None, version="0.9")
    site.toy("mstar-toy", "toy")
    site.toy("mstar-moved", "moved")
    install(site.late, "mstar-needy", CANNOT_IMPORT)
    install(site.late, "mstar-exits", EXITS)
    install(site.late, "mstar-raises", HOOK_RAISES)
    site.toy("mstar-one", "twin")
    site.toy("mstar-two", "twin")
    site.toy("mstar-future", "future", api=99)
    install(site.late, "mstar-old", toy_source("old", "mstar_old"), requires=["mstar-core<0.1"])
    return site


@pytest.fixture(scope="session")
def deadly(tmp_path_factory):
    """One plugin that ends its process when it is imported, one that never finishes, and a sound one."""
    site = Site(tmp_path_factory.mktemp("deadly"))
    (site.early / "torch.py").write_text(TORCH_THAT_RAISES)
    site.toy("mstar-toy", "toy")
    install(site.late, "mstar-kills", "import os\nos._exit(0)\n")
    install(site.late, "mstar-sleeps", "import time\nwhile True:\n    time.sleep(60)\n")
    return site
