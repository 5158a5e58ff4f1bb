module blockwarden.dev/tests/cluster/tools/pause

go 1.26.0
