# Hosts 0 to 3 behind a switch, each in a network namespace: h0 to h3, and sw with veth0 to veth3. Sourced by scripts of root's; docs/ops/switch.md
# and docs/ops/reduce.md have two. All of it goes when the script ends.
set -eu
for space in sw h0 h1 h2 h3; do ip netns add $space; done
trap 'kill $(jobs -p) 2> /dev/null || true; wait; for space in sw h0 h1 h2 h3; do ip netns del $space; done' EXIT
for n in 0 1 2 3; do
    ip link add veth$n netns sw type veth peer name eth0 netns h$n address 02:00:00:00:00:0$n
    ip -n sw link set veth$n up
    ip -n h$n link set eth0 gso_max_segs 1 up      # The switch carries frames as they are on a link.
    ip -n h$n address add 10.0.0.$n/32 dev eth0    # /32, as 10.0.0.0 is a broadcast address in 10.0.0.0/24.
    ip -n h$n route add 10.0.0.0/24 dev eth0
    ip -n h$n route add 172.16.0.0/12 dev eth0     # Switches, for programs that hosts address.
    ip -n h$n neighbour add 172.16.0.0 lladdr 02:00:80:00:00:00 dev eth0    # The switch carries no ARP.
    for other in 0 1 2 3; do
        [ $other = $n ] || ip -n h$n neighbour add 10.0.0.$other lladdr 02:00:00:00:00:0$other dev eth0
    done
done
