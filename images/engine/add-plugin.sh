#!/bin/sh
# The last layer of an engine image, whatever vLLM is below: the user it runs as, and the project's two packages. They come without
# dependencies, since those are vLLM's own; the import at the end shows that none is missing.
set -eu
python="$(command -v python3)"
export UV_NO_CACHE=true UV_LINK_MODE=copy UV_COMPILE_BYTECODE=true PYC_INVALIDATION_MODE=UNCHECKED_HASH
# torch and vLLM ask for the name of the user they run as.
useradd --uid 65532 --key UID_MAX=65532 --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin blockwarden
/run/tools/bin/uv pip install --quiet --offline --no-deps --break-system-packages --python "$python" /run/wheels/*.whl
"$python" -c "import blockwarden_core.policy, blockwarden_engine"
