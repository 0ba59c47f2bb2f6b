"""Print the commands of a README: every fenced block marked `sh`, in order."""

import re
import sys
from pathlib import Path

text = Path(sys.argv[1]).read_text("utf-8")
blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
if not blocks:
    sys.exit(f"{sys.argv[1]}: no block marked sh")
print("\n".join(blocks))
