//! `image serve --frisbee` with a program that knows Frisbee's messages and images from their description alone, and with Frisbee's own
//! programs where `FRISBEE_DIR` names a build of them.

use std::fs;
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rackweave_testing::free_ports;

use super::{COMMAND, Place, Process, SERVER, chunks};
use crate::common::{nap, until};

/// Enough for 8 chunks of the peer's packer.
const BYTES: usize = 4 << 20;

/// A folder with a disk, and its image `golden.ndz` as the peer packs it.
struct Session {
    place: Place,
    group: String,
    port: u16,
}

fn peer(arguments: &[&str]) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/frisbee_peer.py");
    let mut peer = Command::new("python3");
    peer.arg(script).args(arguments).stdin(Stdio::null());
    peer
}

fn output(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

impl Session {
    /// Tests have different groups, as each socket of a group receives what others send to it.
    fn new(group: u8) -> Self {
        let place = Place::new(1);
        place.write_disk("disk", BYTES, 2);
        let file = fs::File::options().write(true).open(place.path("disk")).unwrap();
        // Free space within a chunk, and between chunks.
        let zeros = vec![0; 1 << 20];
        std::os::unix::fs::FileExt::write_all_at(&file, &zeros, 300 << 10).unwrap();
        output(peer(&["pack", &place.at("disk"), &place.at("golden.ndz")]));
        Self { place, group: format!("239.255.96.{group}"), port: free_ports(2) }
    }

    fn serve(&self, more: &[&str]) -> Process {
        let listen = format!("{SERVER}:{}", self.port);
        let arguments = ["serve", "golden.ndz", "--listen", &listen, "--json", "--status", "none"];
        let frisbee = ["--frisbee", &self.group];
        let command = self.place.command(&[&arguments[..], &frisbee, more].concat());
        let mut server = Process::start(command);
        server.event("listening");
        server
    }

    /// The peer as the client at 127.0.0.`client`.
    fn fetch(&self, client: u8, more: &[&str]) -> Peer {
        let (own, port) = (format!("127.0.0.{client}"), (self.port + 1).to_string());
        let out = self.place.path(&format!("copy{client}"));
        let arguments = ["client", &own, &self.group, &port, &out.to_string_lossy()];
        let mut command = peer(&[&arguments[..], more].concat());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Peer { child: Some(child), out }
    }

    fn image(&self) -> Vec<u8> {
        fs::read(self.place.path("golden.ndz")).unwrap()
    }
}

impl Place {
    fn at(&self, name: &str) -> String {
        self.path(name).to_string_lossy().into_owned()
    }
}

/// A client that is killed on drop.
struct Peer {
    child: Option<std::process::Child>,
    out: PathBuf,
}

impl Peer {
    /// What it says in the end.
    fn end(mut self) -> (String, PathBuf) {
        let output = self.child.take().unwrap().wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (String::from_utf8(output.stdout).unwrap(), std::mem::take(&mut self.out))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn clients_without_a_connection_fetch_the_file_as_it_is_despite_losses_and_deaths() {
    rackweave_testing::needs!(Python);
    rackweave_testing::needs!(Multicast);
    let session = Session::new(1);
    let mut server = session.serve(&["--to", "127.0.0.2,127.0.0.3", "--rate", "100 Mbps"]);
    // Nobody answers it, as it is not on the list. While others fetch, it would hear what they are sent.
    let stranger = session.fetch(4, &[]);
    (0..50).for_each(|_| nap());
    drop(stranger);
    let killed = session.fetch(3, &["0", "3"]);
    let lossy = session.fetch(2, &["20"]);
    assert_eq!(killed.end().0, "", "it has ended after three chunks");
    let returned = session.fetch(3, &[]);
    for (client, is_lossy) in [(lossy, true), (returned, false)] {
        let (said, out) = client.end();
        assert!(said.starts_with("done") && said.ends_with(" 0\n") != is_lossy, "{said}");
        assert!(fs::read(out).unwrap() == session.image(), "padding included");
    }
    assert_eq!(server.end(), 0, "all hosts of --to say that they have it");
    assert!(!session.place.path("copy4").exists());
    for event in ["frisbee-joined", "frisbee-left"] {
        let of: Vec<_> = server.events.iter().filter(|it| it["event"] == event).collect();
        let has =
            |host: &str| of.iter().any(|it| it["client"] == host && it["image"] == "golden.ndz");
        assert!(has("127.0.0.2") && has("127.0.0.3") && !has("127.0.0.4"), "{event}: {of:?}");
    }
    let ended = server.found("ended").unwrap();
    let of = &ended["images"][0]["frisbee"];
    assert!((chunks(of, "left"), chunks(of, "present")) == (2, 0), "{of}");
    assert_eq!(ended["absent"], serde_json::json!([]), "{ended}");
    assert!(chunks(of, "partial_requests") > 0, "{of}");
    assert!(chunks(&ended, "refused") > 0, "what the stranger sent: {ended}");
    let unpack = ["unpack", "copy2", "--to", "disk2", "-q"];
    assert!(session.place.command(&unpack).status().unwrap().success());
    assert!(
        fs::read(session.place.path("disk2")).unwrap()
            == fs::read(session.place.path("disk")).unwrap()
    );
}

/// What anybody can send: any bytes, and messages of hosts that do not exist.
#[test]
fn floods_of_joins_and_requests_keep_nobody_from_the_image() {
    rackweave_testing::needs!(Python);
    rackweave_testing::needs!(Multicast);
    let session = Session::new(2);
    let server = session.serve(&[]);
    let to = SocketAddr::new(session.group.parse().unwrap(), session.port + 1);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stopping = rackweave_testing::SetOnDrop(&stop);
        for own in [[127, 0, 0, 7], [127, 0, 0, 8]] {
            let socket = UdpSocket::bind(SocketAddr::from((own, to.port()))).unwrap();
            let stop = &stop;
            scope.spawn(move || {
                let message = |subtype: u32, fields: &[u32]| {
                    let head = [1, subtype, 4 * fields.len() as u32].map(u32::to_le_bytes).concat();
                    let fields = fields.iter().flat_map(|field| field.to_le_bytes());
                    [&head[..], &own, &fields.collect::<Vec<_>>()].concat()
                };
                let mut turn = 0_u32;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    turn = turn.wrapping_add(1);
                    for bytes in [
                        message(1, &[turn]),
                        message(7, &[turn, 0, 1024, 1024, 0, 0]),
                        message(4, &[turn % 9, turn % 1100, turn % 1100]),
                        message(6, &[&[turn % 9, 1][..], &[turn; 32]].concat()),
                        message(2, &[turn, 1]),
                        message(turn % 12, &[turn; 3]),
                        turn.to_le_bytes().to_vec(),
                    ] {
                        let _ = socket.send_to(&bytes, to);
                    }
                    if turn.is_multiple_of(16) {
                        nap();
                    }
                }
            });
        }
        let (said, out) = session.fetch(2, &[]).end();
        assert!(said.starts_with("done") && fs::read(out).unwrap() == session.image(), "{said}");
    });
    let ended = server.interrupted();
    let of = &ended["images"][0]["frisbee"];
    assert!(chunks(of, "present") <= 3 && chunks(of, "refused") > 0, "{of}");
}

#[test]
fn several_images_have_a_group_each_and_one_port() {
    rackweave_testing::needs!(Python);
    rackweave_testing::needs!(Multicast);
    let session = Session::new(3);
    session.place.write_disk("disk", 1 << 20, 3);
    output(peer(&["pack", &session.place.at("disk"), &session.place.at("silver.ndz")]));
    let mut server = session.serve(&["silver.ndz"]);
    let next = Session { place: Place::new(1), group: "239.255.96.4".into(), port: session.port };
    let first = &session.place;
    for (session, client, image) in [(&session, 2, "golden.ndz"), (&next, 3, "silver.ndz")] {
        let (_, copy) = session.fetch(client, &[]).end();
        server.event("frisbee-joined");
        assert!(fs::read(copy).unwrap() == fs::read(first.path(image)).unwrap(), "{image}");
        let group = format!("{}:{}", session.group, session.port + 1);
        let tells = |it: &serde_json::Value| {
            it["event"] == "frisbee-session"
                && it["image"] == image
                && it["group"] == group.as_str()
        };
        assert!(server.events.iter().any(tells), "{:?}", server.events);
    }
    server.interrupted();
}

#[test]
fn clients_that_know_a_name_are_told_the_session() {
    rackweave_testing::needs!(Python);
    rackweave_testing::needs!(Multicast);
    let session = Session::new(7);
    let port = free_ports(1);
    let names = format!("--frisbee-names={port}");
    let server = session.serve(&[&names, "--to", "127.0.0.1"]);
    let ask = |name: &str, port: u16| output(peer(&["ask", SERVER, &port.to_string(), name, "1"]));
    let bytes = session.image().len();
    let told = format!("0 2 1 {SERVER} {} {} {bytes} 0\n", session.group, session.port + 1);
    assert_eq!([ask("golden", port), ask("golden.ndz", port)], [told.clone(), told]);
    assert!(ask("silver", port).starts_with("3 0 0 "), "no such image");
    // What is no request is not answered, and keeps nobody from asking.
    let mut open: Vec<_> = (0..100).map(|_| TcpStream::connect((SERVER, port)).unwrap()).collect();
    for stream in &mut open {
        stream.write_all(&[7; 272]).unwrap();
    }
    assert!(ask("golden", port).starts_with("0 2 1 "));
    server.interrupted();
    let server = session.serve(&[&names, "--to", "127.0.0.2"]);
    assert!(ask("golden", port).starts_with("4 0 0 "), "not for this host");
    server.interrupted();
}

#[test]
fn what_frisbee_cannot_carry_is_refused_with_the_reason() {
    let place = Place::new(1);
    fs::write(place.path("key"), "a secret of this cluster").unwrap();
    let said = |more: &[&str]| {
        let arguments = ["serve", "golden.rwi", "--status", "none", "--frisbee", "239.255.96.9"];
        let output = place.command(&[&arguments[..], more].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let stderr = String::from_utf8_lossy(&output.stderr).replace('│', " ");
        stderr.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let listen = format!("{SERVER}:{}", place.port);
    let said_of = said(&["--listen", &listen]);
    assert!(said_of.contains("`golden` is not in Frisbee's format (.ndz)"), "{said_of}");
    let fetch = ["fetch", "--frisbee", "239.255.96.9:7001", "--to", "x.ndz", "--linger", "1 s"];
    let output = place.command(&fetch).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && stderr.contains("--switch only"), "{stderr}");
    let said_of = said(&["--key-file", "key"]);
    assert!(said_of.contains("cannot be used with"), "{said_of}");
}

impl Session {
    /// Starts the peer as the server at 127.0.0.9.
    fn peer_serves(&self, more: &[&str]) -> Peer {
        let (image, port) = (self.place.at("golden.ndz"), (self.port + 1).to_string());
        let arguments = ["server", "127.0.0.9", &self.group, &port, &image];
        let mut command = peer(&[&arguments[..], more].concat());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Peer { child: Some(child), out: PathBuf::new() }
    }

    /// Fetches from it as 127.0.0.`client`.
    fn fetches(&self, client: u8, more: &[&str]) -> Process {
        let (from, bind) =
            (format!("{}:{}", self.group, self.port + 1), format!("127.0.0.{client}"));
        let to = format!("copy{client}.ndz");
        let arguments = ["fetch", "--frisbee", &from, "--bind", &bind, "--to", &to, "--json"];
        Process::start(self.place.command(&[&arguments[..], more].concat()))
    }
}

/// A message of the host 127.0.0.8.
fn words(kind: u32, subtype: u32, rest: &[u32]) -> Vec<u8> {
    let head = [kind, subtype, 4 * rest.len() as u32].map(u32::to_le_bytes).concat();
    let rest = rest.iter().flat_map(|word| word.to_le_bytes());
    [&head[..], &[127, 0, 0, 8], &rest.collect::<Vec<_>>()].concat()
}

#[test]
fn a_server_that_falls_silent_is_given_up_though_all_chunks_have_begun() {
    rackweave_testing::needs!(Python);
    rackweave_testing::needs!(Multicast);
    let session = Session::new(8);
    let mut client = session.fetches(2, &["--give-up", "2 s"]);
    let to = SocketAddr::new(session.group.parse().unwrap(), session.port + 1);
    let server = UdpSocket::bind(SocketAddr::from(([127, 0, 0, 8], to.port()))).unwrap();
    let mut block = 0;
    while client.found("joined").is_none() || block < 100 {
        // That there is no image is somebody's word until the server has spoken.
        server.send_to(&words(2, 1, &[1]), to).unwrap();
        server.send_to(&words(2, 1, &[1024]), to).unwrap();
        server.send_to(&words(1, 3, &[&[0, block % 1023][..], &[7; 256]].concat()), to).unwrap();
        block += 1;
        nap();
        assert!(block < 10_000 && client.found("failed").is_none(), "{:?}", client.events);
    }
    assert_eq!(client.end(), 1);
    let why = client.found("failed").unwrap()["error"].to_string();
    assert!(why.contains("1 of 1 chunks are missing"), "{why}");
}

#[test]
fn an_image_is_fetched_from_a_server_that_knows_frisbee_only() {
    rackweave_testing::needs!(Python);
    rackweave_testing::needs!(Multicast);
    let session = Session::new(5);
    // It is not known yet that it will answer, and another host says what is not so.
    let mut early = session.fetches(2, &["--from", "127.0.0.9"]);
    let to = SocketAddr::new(session.group.parse().unwrap(), session.port + 1);
    let liar = UdpSocket::bind(SocketAddr::from(([127, 0, 0, 8], to.port()))).unwrap();
    for block in 0..1024 {
        liar.send_to(&words(2, 1, &[1024]), to).unwrap();
        liar.send_to(&words(1, 3, &[&[0, block][..], &[7; 256]].concat()), to).unwrap();
    }
    let server = session.peer_serves(&["30"]);
    assert_eq!(early.end(), 0, "{:?}", early.events);
    let written = early.found("written").unwrap();
    assert_eq!((&written["server"], &written["with_sha1"]), (&"127.0.0.9".into(), &0.into()));
    assert!(chunks(&written, "retries") > 0, "{written}");
    assert!(fs::read(session.place.path("copy2.ndz")).unwrap() == session.image());
    let (said, _) = server.end();
    // LEAVE2, after losses.
    assert!(said.contains("done 5 ") && !said.contains("done 5 0\n"), "{said}");
}

#[test]
fn a_server_of_one_image_answers_clients_that_ask_it_alone() {
    rackweave_testing::needs!(Python);
    rackweave_testing::needs!(Multicast);
    let session = Session::new(10);
    let server = session.serve(&[]);
    let mut client = session.fetches(2, &["--switch"]);
    assert_eq!(client.end(), 0, "{:?}", client.events);
    assert!(fs::read(session.place.path("copy2.ndz")).unwrap() == session.image());
    server.interrupted();
}

#[test]
fn an_image_whose_chunks_are_damaged_is_not_kept() {
    rackweave_testing::needs!(Python);
    rackweave_testing::needs!(Multicast);
    let session = Session::new(6);
    let mut image = session.image();
    image[(3 << 20) + 5000] ^= 1;
    fs::write(session.place.path("golden.ndz"), image).unwrap();
    let _server = session.peer_serves(&[]);
    let mut client = session.fetches(2, &["--give-up", "20 s"]);
    assert_eq!(client.end(), 1);
    let why = client.found("failed").unwrap()["error"].to_string();
    assert!(why.contains("16 chunks in a row were not those of an image"), "{why}");
    assert!(client.found("damaged-blocks").is_some());
    for name in ["copy2.ndz", "copy2.ndz.part"] {
        assert!(!session.place.path(name).exists());
    }
    let mut nobody = session.fetches(3, &["--give-up", "1 s", "--from", "127.0.0.7"]);
    assert_eq!(nobody.end(), 1);
    let why = nobody.found("failed").unwrap()["error"].to_string();
    assert!(why.contains("no server has answered"), "{why}");
}

#[test]
fn an_image_is_packed_that_others_unpack() {
    rackweave_testing::needs!(Python);
    let place = Place::new(1);
    place.write_disk("disk", (3 << 20) + 1000, 7);
    let file = fs::File::options().write(true).open(place.path("disk")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &vec![0; 1 << 20], 1 << 20).unwrap();
    let pack = |more: &[&str]| {
        let arguments = ["pack", "disk", "--to", "disk.ndz", "--format", "ndz", "-q"];
        place.command(&[&arguments[..], more].concat()).output().unwrap()
    };
    let refused = pack(&["--name", "golden"]);
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("--name has no place in Frisbee's format"), "{said}");
    assert!(pack(&[]).status.success());
    output(peer(&["unpack", &place.at("disk.ndz"), &place.at("copy")]));
    let read = |name: &str| fs::read(place.path(name)).unwrap();
    assert!(read("copy") == read("disk"));
    assert_eq!(read("disk.ndz").len(), 3 << 20, "what no compression shortens, and zeros");
}

/// Namespaces at one bridge, which are removed on drop: the server's is 0, with 10.9.0.1.
struct Spaces(String);

impl Spaces {
    fn new(test: &str, hosts: u8) -> Self {
        let this = Self(format!("rwf-{}-{test}", std::process::id()));
        let bridge = this.name("sw");
        let mut lines = vec![
            format!("netns add {bridge}"),
            format!("-n {bridge} link add br0 type bridge mcast_snooping 0"),
            format!("-n {bridge} link set br0 up"),
        ];
        for host in 0..hosts {
            let space = this.host(host);
            lines.extend([
                format!("netns add {space}"),
                format!(
                    "link add name eth0 netns {space} type veth peer name p{host} netns {bridge}"
                ),
                format!("-n {bridge} link set p{host} master br0 up"),
                format!("-n {space} addr add 10.9.0.{}/24 dev eth0", host + 1),
                format!("-n {space} link set lo up"),
                format!("-n {space} link set eth0 up"),
                format!("-n {space} route add 224.0.0.0/4 dev eth0"),
            ]);
        }
        for line in lines {
            assert!(Command::new("ip").args(line.split(' ')).status().unwrap().success(), "{line}");
        }
        this
    }

    fn name(&self, of: &str) -> String {
        format!("{}-{of}", self.0)
    }

    fn host(&self, host: u8) -> String {
        self.name(&host.to_string())
    }

    /// A program at a host, in this folder.
    fn at(&self, host: u8, folder: &Path, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.host(host)]).arg(program);
        command.current_dir(folder).stdin(Stdio::null());
        command
    }
}

impl Drop for Spaces {
    fn drop(&mut self) {
        let list = Command::new("ip").args(["netns", "list"]).output();
        let list =
            list.map_or(String::new(), |it| String::from_utf8_lossy(&it.stdout).into_owned());
        for name in list.lines().filter_map(|line| line.split(' ').next()) {
            if name.starts_with(&self.name("")) {
                let _ = Command::new("ip").args(["netns", "del", name]).status();
            }
        }
    }
}

fn program(name: &str) -> PathBuf {
    rackweave_testing::frisbee_program(name).unwrap()
}

#[test]
fn emulabs_client_fetches_from_this_server_despite_losses() {
    rackweave_testing::needs!(Frisbee);
    rackweave_testing::needs!(NetAdmin);
    let (spaces, place) = (Spaces::new("serve", 3), Place::new(1));
    place.write_disk("disk", 24 << 20, 5);
    let folder = place.folder.path();
    let mut imagezip = Command::new(program("imagezip"));
    imagezip.args(["-r", "disk", "golden.ndz"]).current_dir(folder);
    output(imagezip);
    let mut serve = spaces.at(0, folder, COMMAND);
    serve.args([
        "image",
        "serve",
        "golden.ndz",
        "--json",
        "--status",
        "none",
        "--rate",
        "200 Mbps",
    ]);
    serve.args(["--listen", "10.9.0.1", "--frisbee", "239.255.96.20:7001", "--frisbee-names"]);
    serve.args(["--to", "10.9.0.2,10.9.0.3"]);
    let mut server = Process::start(serve);
    server.event("listening");
    let client = |host: u8, more: &[&str], to: &str| {
        let own = format!("10.9.0.{}", host + 1);
        let mut client = spaces.at(host, folder, program("frisbee"));
        let session = ["-m", "239.255.96.20", "-p", "7001"];
        let named = ["-S", "10.9.0.1", "-F", "golden"];
        let whence = if more.contains(&"-N") { named } else { session };
        client.args(["-i", &own]).args(whence).args(more).arg(to);
        client.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut killed = client(1, &[], "killed");
    // A socket that has room for a few packets loses others.
    let clients = [client(2, &["-k", "16"], "copy2")];
    server.event("frisbee-joined");
    nap();
    killed.kill().unwrap();
    killed.wait().unwrap();
    // Without expansion: the file itself.
    let again = client(1, &["-N"], "copy1");
    for client in clients.into_iter().chain([again]) {
        let output = client.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(server.end(), 0);
    let read = |name: &str| fs::read(place.path(name)).unwrap();
    assert!(read("copy1") == read("golden.ndz") && read("copy2") == read("disk"));
}

#[test]
fn emulabs_server_serves_this_client_and_imageunzip_what_is_packed_here() {
    rackweave_testing::needs!(Frisbee);
    rackweave_testing::needs!(NetAdmin);
    let (spaces, place) = (Spaces::new("fetch", 3), Place::new(1));
    place.write_disk("disk", (24 << 20) + 5 * 512, 6);
    let folder = place.folder.path();
    let pack = ["pack", "disk", "--to", "golden.ndz", "--format", "ndz", "-q"];
    assert!(place.command(&pack).status().unwrap().success());
    let mut imageunzip = Command::new(program("imageunzip"));
    imageunzip.args(["golden.ndz", "unzipped"]).current_dir(folder);
    output(imageunzip);
    let read = |name: &str| fs::read(place.path(name)).unwrap();
    assert!(read("unzipped") == read("disk"));
    let mut server = spaces.at(0, folder, program("frisbeed"));
    server.args(["-i", "10.9.0.1", "-m", "239.255.96.21", "-p", "7001", "-W", "200000000"]);
    let server = server.arg("golden.ndz").stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let _server = Peer { child: Some(server.unwrap()), out: PathBuf::new() };
    let client = |host: u8| {
        let mut fetch = spaces.at(host, folder, COMMAND);
        fetch.args(["image", "fetch", "--frisbee", "239.255.96.21:7001", "--json"]);
        Process::start({
            fetch.args(["--to", &format!("copy{host}.ndz")]);
            fetch
        })
    };
    let mut clients = [client(1), client(2)];
    for client in &mut clients {
        assert_eq!(client.end(), 0, "{:?}", client.events);
        let written = client.found("written").unwrap();
        assert_eq!(written["with_sha1"], written["chunks"], "{written}");
    }
    assert!(read("copy1.ndz") == read("golden.ndz") && read("copy2.ndz") == read("golden.ndz"));
}

/// The example of the slides, with real parties: an old server, an old client, changed clients and a switch.
#[test]
fn clients_of_emulabs_server_serve_each_other_behind_a_switch_that_dies_and_returns() {
    rackweave_testing::needs!(Frisbee);
    rackweave_testing::needs!(NetAdmin);
    rackweave_testing::needs!(Clang);
    let (spaces, place) = (Spaces::new("both", 6), Place::new(1));
    place.write_disk("disk", 16 << 20, 8);
    let folder = place.folder.path();
    let mut imagezip = Command::new(program("imagezip"));
    imagezip.args(["-r", "disk", "golden.ndz"]).current_dir(folder);
    output(imagezip);
    let read = |name: &str| fs::read(place.path(name)).unwrap();
    let chunks = read("golden.ndz").len() as u64 >> 20;
    let mut server = spaces.at(0, folder, program("frisbeed"));
    server.args(["-d", "-i", "10.9.0.1", "-m", "239.255.96.22", "-p", "7001", "-W", "150000000"]);
    let log = fs::File::create(place.path("server.log")).unwrap();
    let server = server.arg("golden.ndz").stdout(Stdio::null()).stderr(log).spawn().unwrap();
    let mut server = Peer { child: Some(server), out: PathBuf::new() };
    let switch = || {
        let mut switch = Command::new("ip");
        switch.args(["netns", "exec", &spaces.name("sw"), COMMAND, "image", "switch", "--bpf"]);
        switch.args(["--ports", "p1,p2,p3,p4,p5", "--server", "10.9.0.1:7001", "--no-pending"]);
        switch.args(["--json", "--stats"]).stdin(Stdio::null());
        let mut switch = Process::start(switch);
        switch.event("ready");
        switch
    };
    let changed = |host: u8, linger: &str| {
        let mut fetch = spaces.at(host, folder, COMMAND);
        fetch.args(["image", "fetch", "--frisbee", "239.255.96.22:7001", "--switch", "--json"]);
        fetch.args(["--overwrite", "--linger", linger, "--to", &format!("copy{host}.ndz")]);
        Process::start(fetch)
    };
    let unmodified = |host: u8| {
        let mut frisbee = spaces.at(host, folder, program("frisbee"));
        let own = format!("10.9.0.{}", host + 1);
        frisbee.args(["-i", &own, "-m", "239.255.96.22", "-p", "7001", &format!("disk{host}")]);
        let child = frisbee.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        Peer { child: Some(child), out: PathBuf::new() }
    };
    let from = |written: &serde_json::Value, host: u8| {
        written["from"][format!("10.9.0.{}", host + 1)].as_u64().unwrap_or(0)
    };
    let redirecting = switch();
    let mut first = changed(1, "600 s");
    let beside = unmodified(2);
    assert_eq!(from(&first.event("written"), 0), chunks, "nobody else has any");
    beside.end();
    // The second one takes all from the first.
    let mut second = changed(3, "600 s");
    let written = second.event("written");
    assert_eq!((from(&written, 0), from(&written, 1)), (0, chunks), "{written}");
    // Without the switch, the server.
    drop(redirecting);
    let mut third = changed(4, "0 s");
    assert_eq!(from(&third.event("written"), 0), chunks);
    assert_eq!(third.end(), 0);
    // The switch learns again who has what.
    let mut redirecting = switch();
    until("both have reported", || {
        redirecting.found("stats");
        redirecting
            .events
            .iter()
            .any(|it| it["clients"].as_array().is_some_and(|all| all.len() == 2))
    });
    // A holder that has died delays others.
    drop(first);
    let mut fourth = changed(5, "0 s");
    let written = fourth.event("written");
    assert_eq!(
        (from(&written, 1), from(&written, 0) + from(&written, 3)),
        (0, chunks),
        "{written}"
    );
    assert!(from(&written, 3) >= chunks / 2, "{written}");
    for host in [1, 3, 4, 5] {
        assert!(read(&format!("copy{host}.ndz")) == read("golden.ndz"), "{host}");
    }
    assert!(read("disk2") == read("disk"));
    let ended = redirecting.interrupted();
    assert!(super::chunks(&ended, "to_holders") >= chunks, "{ended}");
    if let Some(server) = &mut server.child {
        assert!(server.try_wait().unwrap().is_none(), "the server has ended");
    }
}
