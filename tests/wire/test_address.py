import subprocess
import sys

import pytest

from mstar_core.errors import ConfigurationError
from mstar_core.wire.address import Keys, host_identity

OTHERS_IDENTITY = "from mstar_core.wire.address import host_identity; print(host_identity())"


def test_processes_of_one_host_have_one_identity():
    other = subprocess.run([sys.executable, "-c", OTHERS_IDENTITY], check=True, capture_output=True, text=True)
    assert other.stdout.strip() == host_identity()


def test_keys_are_read_as_they_were_written_by_their_owner_alone(tmp_path):
    keys, file = Keys.generate(), tmp_path / "keys"
    file.touch(0o644)
    keys.save(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert Keys.load(file) == keys
    assert keys.secret not in repr(keys)


def test_keys_that_others_may_read_are_refused_with_what_to_do(tmp_path):
    file = tmp_path / "keys"
    Keys.generate().save(file)
    file.chmod(0o640)
    with pytest.raises(ConfigurationError, match=f"mode 640.*chmod 600 {file}"):
        Keys.load(file)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"public": "a", "secret": "b"}', "\xff"])
def test_a_file_without_a_key_pair_is_refused(tmp_path, text):
    file = tmp_path / "keys"
    file.write_text(text, "latin-1")
    file.chmod(0o600)
    with pytest.raises(ConfigurationError, match="key file"):
        Keys.load(file)


def test_a_pair_of_two_halves_is_refused(tmp_path):
    file = tmp_path / "keys"
    Keys(public=Keys.generate().public, secret=Keys.generate().secret).save(file)
    with pytest.raises(ConfigurationError, match="no key pair"):
        Keys.load(file)


def test_a_missing_key_file_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Keys.load(tmp_path / "none")
