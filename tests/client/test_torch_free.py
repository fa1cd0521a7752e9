import subprocess
import sys

SERVER = "import mstar_core.server.app, mstar_core.client.service, sys; sys.exit('torch' in sys.modules)"


def test_the_process_of_the_http_server_imports_no_torch():
    assert subprocess.run([sys.executable, "-c", SERVER], check=False).returncode == 0
