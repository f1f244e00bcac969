"""What a BitTorrent swarm needs besides a client: torrent files, a tracker, and a peer that is libtorrent. Used by imaging.py.

  bittorrent.py tracker                       answers on port 6969; prints a line for each announcement
  bittorrent.py seed|leech TORRENT FOLDER     a leecher makes NAME.done when it has all pieces; both stay until they are killed
"""
import hashlib, http.server, os, socket, sys, urllib.parse

TRACKER_PORT, PORT = 6969, 6881
PIECE = 1 << 20


def bencode(value):
    if isinstance(value, int):
        return b"i%de" % value
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        return b"%d:%s" % (len(value), value)
    return b"d" + b"".join(bencode(key) + bencode(value[key]) for key in sorted(value)) + b"e"


def pieces_of(file):
    """The SHA-1 hashes of all pieces."""
    with open(file, "rb") as source:
        return b"".join(hashlib.sha1(data).digest() for data in iter(lambda: source.read(PIECE), b""))


def torrent(file, pieces, tracker):
    info = {"length": os.path.getsize(file), "name": os.path.basename(file), "piece length": PIECE, "pieces": pieces}
    return bencode({"announce": tracker, "info": info})


def serve_tracker():
    peers = set()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked = urllib.parse.parse_qs(urllib.parse.urlparse(self.path).query)
            peer = socket.inet_aton(self.client_address[0]) + int(asked["port"][0]).to_bytes(2, "big")
            if asked.get("event") == ["stopped"]:
                peers.discard(peer)
            else:
                peers.add(peer)
            answer = bencode({"interval": 2, "min interval": 1, "peers": b"".join(sorted(peers - {peer}))})
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)
            print("announced", self.client_address[0], flush=True)

        def log_message(self, *_):
            pass

    http.server.ThreadingHTTPServer(("", TRACKER_PORT), Handler).serve_forever()


def libtorrent_peer(what, torrent, folder):
    import libtorrent

    session = libtorrent.session({
        "listen_interfaces": f"0.0.0.0:{PORT}", "enable_dht": False, "enable_lsd": False, "enable_upnp": False,
        "enable_natpmp": False, "enable_outgoing_utp": False, "enable_incoming_utp": False, "out_enc_policy": 2,
        "in_enc_policy": 2, "unchoke_slots_limit": 8, "max_out_request_queue": 500, "min_announce_interval": 1,
        "alert_mask": libtorrent.alert.category_t.status_notification | libtorrent.alert.category_t.error_notification,
    })
    wanted = libtorrent.add_torrent_params()
    wanted.ti, wanted.save_path = libtorrent.torrent_info(torrent), folder
    wanted.flags &= ~(libtorrent.torrent_flags.paused | libtorrent.torrent_flags.auto_managed)
    if what == "seed":
        wanted.flags |= libtorrent.torrent_flags.seed_mode
    handle = session.add_torrent(wanted)
    while True:
        session.wait_for_alert(1000)
        for alert in session.pop_alerts():
            if what == "leech" and isinstance(alert, libtorrent.torrent_finished_alert):
                open(os.path.join(folder, handle.torrent_file().name() + ".done"), "w").close()


if __name__ == "__main__":
    serve_tracker() if sys.argv[1] == "tracker" else libtorrent_peer(*sys.argv[1:])
