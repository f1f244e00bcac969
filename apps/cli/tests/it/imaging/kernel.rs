//! An image over a Linux bridge whose ports have SWP2P's program in the kernel, between hosts in namespaces.

use rackweave_linux::netns;

use super::*;

const HOSTS: u8 = 5;

/// The namespaces of a switch and of its hosts, which are removed on drop. Host 0 is the server.
struct Rack {
    prefix: String,
    place: Place,
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    let verdict = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {verdict}");
}

fn address(host: u8) -> String {
    format!("198.51.100.{}", 7 + 30 * host)
}

impl Rack {
    fn make(test: &str, chunks: usize) -> Option<Self> {
        rackweave_testing::needs!(NetAdmin, None);
        rackweave_testing::needs!(Clang, None);
        let prefix = format!("rwk-{}-{test}", std::process::id());
        let rack = Self { prefix, place: Place::new(chunks) };
        fs::write(rack.place.path("key"), "a secret of this cluster").unwrap();
        let switch = rack.space("sw");
        ip(&format!("netns add {switch}"));
        ip(&format!("-n {switch} link add br0 type bridge"));
        ip(&format!("-n {switch} link set br0 up"));
        for host in 0..HOSTS {
            let space = rack.host(host);
            ip(&format!("netns add {space}"));
            ip(&format!("link add p{host} netns {switch} type veth peer name eth0 netns {space}"));
            ip(&format!("-n {space} addr add {}/24 dev eth0", address(host)));
            ip(&format!("-n {space} link set eth0 up"));
            ip(&format!("-n {switch} link set p{host} master br0 up"));
        }
        Some(rack)
    }

    fn space(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn host(&self, host: u8) -> String {
        self.space(&format!("h{host}"))
    }

    fn start(&self, space: &str, arguments: &str) -> Process {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", space, COMMAND, "image"]).args(arguments.split(' '));
        command.arg("--json").current_dir(self.place.folder.path()).stdin(Stdio::null());
        Process::start(command)
    }

    /// Starts the program at the ports of all hosts but the server.
    fn switch(&self) -> Process {
        let ports: Vec<String> = (1..HOSTS).map(|host| format!("p{host}")).collect();
        let arguments = format!("switch --bpf --ports {} --server {}", ports.join(","), address(0));
        let mut switch = self.start(&self.space("sw"), &arguments);
        switch.event("ready");
        switch
    }

    fn serve(&self, more: &str) -> Process {
        let mut server =
            self.start(&self.host(0), &format!("serve golden.rwi --switch --key-file key{more}"));
        server.event("listening");
        server
    }

    fn fetch(&self, host: u8, more: &str) -> Process {
        let from = address(0);
        let arguments = format!("fetch golden --from {from} --to copy{host} --key-file key{more}");
        self.start(&self.host(host), &arguments)
    }
}

impl Drop for Rack {
    fn drop(&mut self) {
        let _ = netns::remove(&self.prefix);
    }
}

#[test]
fn the_kernel_redirects_requests_of_keyed_hosts_that_start_together() {
    let Some(rack) = Rack::make("t", 256) else { return };
    let switch = rack.switch();
    let server = rack.serve(" --expect 4");
    let mut clients: Vec<Process> =
        (1..HOSTS).map(|host| rack.fetch(host, " --linger 2s")).collect();
    for client in &mut clients {
        assert_eq!(client.end(), 0, "{:?}", client.events);
    }
    assert!((1..HOSTS).all(|host| rack.place.is_complete(host, "disk")));
    let (ended, switched) = (server.interrupted(), switch.interrupted());
    let sent = chunks(&ended, "chunks_sent");
    assert!((256..=400).contains(&sent), "{sent} chunks for 4 clients with 256 each; {switched}");
    let redirected = chunks(&switched, "to_holders") + chunks(&switched, "to_pending");
    assert!(redirected >= 4 * 256 - sent, "{sent} chunks by the server; {switched}");
    assert_eq!((chunks(&switched, "spoofed"), chunks(&switched, "refused")), (0, 0), "{switched}");
}

#[test]
fn a_late_host_is_served_by_one_that_stays_and_by_the_server_without_the_program() {
    let Some(rack) = Rack::make("l", 64) else { return };
    let switch = rack.switch();
    let server = rack.serve("");
    let mut first = rack.fetch(1, " --linger 600s");
    first.event("written");
    let mut second = rack.fetch(2, "");
    assert_eq!(second.end(), 0);
    let from = second.found("written").unwrap()["from"].clone();
    assert!(from[address(1)].as_u64().unwrap_or(0) > 32, "{from}");
    assert!(chunks(&switch.interrupted(), "to_holders") > 32);
    let mut third = rack.fetch(3, "");
    assert_eq!(third.end(), 0);
    assert_eq!(third.found("written").unwrap()["from"][address(0)], 64);
    assert!(rack.place.is_complete(2, "disk") && rack.place.is_complete(3, "disk"));
    first.signal("-INT");
    assert_eq!(first.end(), 0);
    server.interrupted();
}
