//! Network namespaces for unit tests.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Removes a namespace when it is dropped.
struct Namespace(String);

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// Runs this in a namespace of its own, in which packets of loopback have at most `mtu` bytes. `name` distinguishes tests.
pub(crate) fn with_mtu(name: &str, mtu: u32, run: impl FnOnce() + Send) {
    let space = Namespace(format!("rwt-{name}-{}", std::process::id()));
    let ip = |line: &str| {
        let status = Command::new("ip").args(line.split(' ')).status().unwrap();
        assert!(status.success(), "{line}");
    };
    ip(&format!("netns add {}", space.0));
    ip(&format!("-n {} link set lo up mtu {mtu}", space.0));
    let path = format!("/run/netns/{}", space.0);
    std::thread::scope(|scope| {
        let inside = scope.spawn(move || {
            let space = File::open(path).unwrap();
            move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            run();
        });
        inside.join().unwrap();
    });
}
