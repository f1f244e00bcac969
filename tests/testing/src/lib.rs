//! The privileges, programs and protocols that some tests need and not every machine provides, the number of cases that property
//! tests try, ports, and recorded packets. Only tests use this crate.
//!
//! ```
//! # fn namespaces_come_and_go() {
//! rackweave_testing::needs!(NetAdmin);
//! // From here on the test may create namespaces.
//! # }
//! ```
//!
//! A test whose need is not met is skipped, but never silently: it prints the reason, and appends its name and the need
//! to a file that `.ci/run` reports (`RACKWEAVE_SKIPPED`, by default `skipped-tests` in the target directory). If the
//! environment variable `RACKWEAVE_REQUIRE` lists the need, or is `all`, the test fails instead.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::test_runner::Config as ProptestConfig;

pub use crate::ports::{bind_again, free_address, free_ports};
pub use crate::recording::{Recorded, homa_module};

mod ports;
mod recording;

/// The configuration of a property test that tries this many cases by default. `PROPTEST_CASES` changes the number in the same
/// proportion as it changes proptest's default of 256: with 25600 each test tries a hundred times as many.
///
/// `ProptestConfig::with_cases` ignores the variable, so that such a test cannot be repeated at scale.
#[must_use]
pub fn cases(default: u32) -> ProptestConfig {
    const PROPTEST_DEFAULT: u64 = 256;
    let config = ProptestConfig::default();
    let wanted = u64::from(default) * u64::from(config.cases) / PROPTEST_DEFAULT;
    ProptestConfig { cases: u32::try_from(wanted).unwrap_or(u32::MAX).max(1), ..config }
}

/// Sets a flag when it is dropped, also by a panic. A scope waits for its threads: one that runs until a flag is set would keep a test
/// that has failed from ending.
#[derive(Debug)]
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns the path of a program of Emulab's Frisbee, in the folder that `FRISBEE_DIR` names.
#[must_use]
pub fn frisbee_program(name: &str) -> Option<PathBuf> {
    std::env::var_os("FRISBEE_DIR").map(|folder| PathBuf::from(folder).join(name))
}

/// What a test can need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Creating network namespaces with interfaces, by `ip` and `tc`.
    NetAdmin,
    /// Mounting file systems in a mount namespace.
    SysAdmin,
    /// Running a program as another user.
    SetUid,
    /// A compiler for eBPF programs.
    Clang,
    /// IPv6 on the loopback interface.
    Ipv6,
    /// IP multicast on the loopback interface.
    Multicast,
    /// Making ext4 file systems.
    Ext4,
    /// Block devices that are files, by `losetup`.
    Loop,
    /// Python 3.9 or later.
    Python,
    /// Emulab's Frisbee programs.
    Frisbee,
    /// A client and a server of container registries, neither of them Rackweave's.
    Skopeo,
}

impl Need {
    const ALL: [Self; 11] = [
        Self::NetAdmin,
        Self::SysAdmin,
        Self::SetUid,
        Self::Clang,
        Self::Ipv6,
        Self::Multicast,
        Self::Ext4,
        Self::Loop,
        Self::Python,
        Self::Frisbee,
        Self::Skopeo,
    ];

    /// Returns the name by which `RACKWEAVE_REQUIRE` lists the need.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NetAdmin => "net-admin",
            Self::SysAdmin => "sys-admin",
            Self::SetUid => "set-uid",
            Self::Clang => "clang",
            Self::Ipv6 => "ipv6",
            Self::Multicast => "multicast",
            Self::Ext4 => "ext4",
            Self::Loop => "loop",
            Self::Python => "python3",
            Self::Frisbee => "frisbee",
            Self::Skopeo => "skopeo",
        }
    }

    const fn description(self) -> &'static str {
        match self {
            Self::NetAdmin => "CAP_NET_ADMIN and CAP_SYS_ADMIN, and the programs ip and tc",
            Self::SysAdmin => "CAP_SYS_ADMIN and the program unshare",
            Self::SetUid => "CAP_SETUID",
            Self::Clang => "the program clang",
            Self::Ipv6 => "IPv6",
            Self::Multicast => "multicast on loopback",
            Self::Ext4 => "mkfs.ext4",
            Self::Loop => "CAP_SYS_ADMIN, loop devices and the program losetup",
            Self::Python => "python3 (3.9 or later)",
            Self::Frisbee => {
                "Emulab's frisbee, frisbeed, imagezip and imageunzip in the folder FRISBEE_DIR"
            }
            Self::Skopeo => "the programs skopeo and docker-registry",
        }
    }

    /// Returns whether this machine meets the need. Each process tries it once.
    fn is_met(self) -> bool {
        static MET: [OnceLock<bool>; Need::ALL.len()] =
            [const { OnceLock::new() }; Need::ALL.len()];
        *MET[self as usize].get_or_init(|| match self {
            Self::NetAdmin => {
                let name = format!("rw-needs-{}", std::process::id());
                let ip = |verb| succeeds(&["ip", "netns", verb, &name]);
                succeeds(&["tc", "-V"]) && ip("add") && ip("del")
            }
            Self::SysAdmin => succeeds(&["unshare", "-m", "sh", "-c", "mount -t tmpfs none /tmp"]),
            Self::SetUid => has_capability(7),
            Self::Clang => succeeds(&["clang", "--version"]),
            Self::Ipv6 => std::net::UdpSocket::bind("[::1]:0").is_ok(),
            Self::Python => {
                succeeds(&["python3", "-c", "import sys; sys.exit(sys.version_info < (3, 9))"])
            }
            Self::Frisbee => ["frisbee", "frisbeed", "imagezip", "imageunzip"]
                .iter()
                .all(|name| frisbee_program(name).is_some_and(|path| path.is_file())),
            Self::Skopeo => {
                succeeds(&["skopeo", "--version"]) && succeeds(&["docker-registry", "--version"])
            }
            Self::Ext4 => succeeds(&["mkfs.ext4", "-V"]),
            Self::Loop => {
                let script = "f=$(mktemp); truncate -s 1M $f; d=$(losetup -f --show $f) && losetup -d $d; r=$?; rm $f; exit $r";
                succeeds(&["sh", "-c", script])
            }
            Self::Multicast => {
                let joins = |socket: std::net::UdpSocket| {
                    let group = std::net::Ipv4Addr::new(239, 255, 0, 1);
                    socket.join_multicast_v4(&group, &std::net::Ipv4Addr::LOCALHOST)
                };
                std::net::UdpSocket::bind("0.0.0.0:0").and_then(joins).is_ok()
            }
        })
    }
}

/// Returns from the test, with a value if one is given, if a [`Need`] is not met. See the crate's documentation.
#[macro_export]
macro_rules! needs {
    ($need:ident) => {
        $crate::needs!($need, ())
    };
    ($need:ident, $value:expr) => {
        if !$crate::met_or_skipped($crate::Need::$need) {
            return $value;
        }
    };
}

/// Returns whether a need is met; if not, records that the test was skipped.
///
/// # Panics
/// If the need is required (see the crate's documentation) and not met.
#[must_use]
pub fn met_or_skipped(need: Need) -> bool {
    let met = need.is_met();
    if !met {
        skip(need, std::env::var("RACKWEAVE_REQUIRE").ok().as_deref());
    }
    met
}

fn skip(need: Need, required: Option<&str>) {
    let thread = std::thread::current();
    let test = format!("{}::{}", binary(), thread.name().unwrap_or("?"));
    let needs = need.description();
    assert!(!is_required(need, required), "{test} needs {needs}, which RACKWEAVE_REQUIRE demands");
    println!("skipped: needs {needs}");
    let Some(path) = record() else { return };
    let line = format!("{test} ({})\n", need.name());
    let written = OpenOptions::new().create(true).append(true).open(&path);
    let written = written.and_then(|mut file| file.write_all(line.as_bytes()));
    written.unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
}

fn is_required(need: Need, required: Option<&str>) -> bool {
    let mut names = required.unwrap_or_default().split(',').filter(|name| !name.is_empty());
    names.any(|name| {
        let known = name == "all" || Need::ALL.iter().any(|need| need.name() == name);
        assert!(known, "RACKWEAVE_REQUIRE names `{name}`, which no test needs");
        name == "all" || name == need.name()
    })
}

/// Returns the file that lists skipped tests.
fn record() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("RACKWEAVE_SKIPPED") {
        return Some(path.into());
    }
    // target/PROFILE/deps/TEST
    let executable = std::env::current_exe().ok()?;
    Some(executable.ancestors().nth(3)?.join("skipped-tests"))
}

/// Returns the name of the test's executable without its hash.
fn binary() -> String {
    let executable = std::env::current_exe().unwrap_or_default();
    let name = executable.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    name.rsplit_once('-').map_or(name.clone(), |(name, _)| name.to_owned())
}

fn succeeds(command: &[&str]) -> bool {
    let mut child = Command::new(command[0]);
    child.args(&command[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    child.status().is_ok_and(|status| status.success())
}

/// Returns whether this process has a capability, given by its number in linux/capability.h.
fn has_capability(number: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    effective.is_some_and(|bits| bits >> number & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_requirement_is_all_or_a_list_of_names() {
        for need in Need::ALL {
            assert!(!is_required(need, None) && !is_required(need, Some("")));
            assert!(is_required(need, Some("all")));
            assert!(is_required(need, Some(need.name())));
        }
        assert!(is_required(Need::Clang, Some("net-admin,clang")));
        assert!(!is_required(Need::Ipv6, Some("net-admin,clang")));
    }

    #[test]
    #[should_panic(expected = "names `clnag`")]
    fn a_misspelt_requirement_is_an_error() {
        let _ = is_required(Need::Clang, Some("clnag"));
    }

    #[test]
    #[should_panic(expected = "needs the program clang, which RACKWEAVE_REQUIRE demands")]
    fn what_is_required_and_missing_fails() {
        skip(Need::Clang, Some("clang"));
    }

    #[test]
    fn a_need_is_where_its_place_in_the_list_is() {
        for (place, need) in Need::ALL.into_iter().enumerate() {
            assert_eq!(need as usize, place);
        }
        assert_eq!(binary(), "rackweave_testing");
        assert!(succeeds(&["true"]) && !succeeds(&["false"]) && !succeeds(&["no-such-program"]));
    }
}
