#!/usr/bin/env bash
# The command line, from a file of edges to predictions. Usage: examples/cli.sh [FOLDER]
set -euo pipefail
work="${1:-$(mktemp -d)}"

cat > "$work/friends.csv" <<EDGES
from,to,weight
ada,ben,1.0
ben,cleo,0.5
cleo,ada,2.0
dan,ada,1.5
EDGES
tiergnn ingest "$work/friends.csv" --ids relabel --undirected --out "$work/friends"
tiergnn info "$work/friends"

tiergnn generate sbm --nodes 2000 --classes 4 --out "$work/sbm"
tiergnn partition "$work/sbm" --parts 4 --method block
tiergnn train "$work/sbm" --model gat --hidden_channels 8 --heads 4 --dropout 0.5 --epochs 20 --out "$work/run"
tiergnn resume "$work/run" --epochs 30
tiergnn evaluate "$work/run" --split test
tiergnn predict "$work/run" --kind labels --out "$work/preds.csv"
tiergnn report "$work/run" --html "$work/report.html"
echo "everything is in $work"
