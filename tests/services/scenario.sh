# What happens to the units, inside. Whatever does not hold ends it; $1 is how the documentation sets them up.
set -eu
cd /checkout
. "$1"
holdfast=/opt/holdfast/bin/holdfast

eventually() {
    for _ in $(seq 300); do
        if "$@" >/dev/null 2>&1; then return; fi
        sleep 0.1
    done
    echo "it never came true: $*"
    return 1
}

is() { [ "$(systemctl show --property="$2" --value "$1")" = "$3" ]; }
turn_is() { "$holdfast" show "$1" --turns 1 | grep -q "^[0-9]* *$2 "; }
answers() { curl --silent --fail http://127.0.0.1:8787/healthz; }
wait_for='TOOL shell {"command": "touch begun; while [ ! -e go ]; do sleep 0.05; done"}'
work=/home/agents

echo "a turn is run, where the worker's user is at home"
"$holdfast" enqueue --agent a --provider scripted --name first 'SAY hello'
eventually turn_is first done
"$holdfast" show first | grep -q ", in $work,"

echo "the worker is killed in a turn: it is started again, and so is the turn"
"$holdfast" enqueue --agent a --provider scripted --name second "$wait_for"
eventually test -e "$work/begun"
rm "$work/begun"
kill -9 "$(systemctl show --property=MainPID --value holdfast-worker)"
eventually test -e "$work/begun"
is holdfast-worker NRestarts 1

echo "the server is killed, and started again: the turn goes on"
kill -9 "$(systemctl show --property=MainPID --value holdfast-server)"
eventually is holdfast-server NRestarts 1
eventually answers
systemctl restart holdfast-server
eventually answers

echo "the worker is stopped: it lets its agent finish"
(sleep 1; touch "$work/go") &
systemctl stop holdfast-worker
is holdfast-worker Result success
turn_is second done

echo "the server is stopped while somebody follows"
curl --silent --no-buffer --header "Authorization: Bearer $HOLDFAST_TOKEN" \
    http://127.0.0.1:8787/v1/sessions/second/events >/dev/null &
systemctl stop holdfast-server
is holdfast-server Result success
wait

echo "neither was killed for being slow, and both files are what systemd takes"
if journalctl --quiet --unit 'holdfast-*' --grep 'timed out'; then exit 1; fi
[ -z "$(systemd-analyze verify /etc/systemd/system/holdfast-*.service 2>&1)" ]
systemd-analyze security --no-pager holdfast-server | tail -n 1
echo "everything held"
