//! The namespaces of a switch and of its hosts.

use std::process::Command;

use rackweave_linux::netns;

/// Calls `ip`, which must succeed.
pub(crate) fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    let verdict = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {verdict}");
}

/// Runs a function in a namespace.
pub(crate) fn inside<T: Send>(name: &str, what: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|threads| {
        let done = threads.spawn(|| {
            netns::enter(name).unwrap();
            what()
        });
        done.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The namespaces of a switch and of its hosts, which are removed on drop.
pub(crate) struct Namespaces {
    prefix: String,
}

impl Namespaces {
    /// Creates the switch's. Returns `None` if this process may not create namespaces or has no compiler.
    pub(crate) fn make(test: &str) -> Option<Self> {
        rackweave_testing::needs!(NetAdmin, None);
        rackweave_testing::needs!(Clang, None);
        let made = Self { prefix: format!("rwp-{}-{test}", std::process::id()) };
        ip(&format!("netns add {}", made.switch()));
        Some(made)
    }

    pub(crate) fn switch(&self) -> String {
        format!("{}sw", self.prefix)
    }

    pub(crate) fn host(&self, host: u8) -> String {
        format!("{}{host}", self.prefix)
    }

    /// Creates a host's, with the interface `eth0` that leads to the switch's `p{host}`, and these options of its link.
    pub(crate) fn add_host(&self, host: u8, options: &str) {
        let (switch, name) = (self.switch(), self.host(host));
        ip(&format!("netns add {name}"));
        ip(&format!(
            "link add p{host} netns {switch} type veth peer name eth0{options} netns {name}"
        ));
        ip(&format!("-n {name} link set eth0 up"));
        ip(&format!("-n {name} link set lo up"));
        ip(&format!("-n {switch} link set p{host} up"));
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        let _ = netns::remove(&self.prefix);
    }
}
