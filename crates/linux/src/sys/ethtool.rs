//! Offloads of an interface, which only an ioctl switches.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketType, socket};

/// Generic commands of `linux/ethtool.h` that set a flag: checksums of what is sent; segmentation by the device,
/// and before it; the joining of what is received.
const SWITCHES: [u32; 5] = [
    0x0000_001f, // ETHTOOL_STSO
    0x0000_0024, // ETHTOOL_SGSO
    0x0000_002c, // ETHTOOL_SGRO
    0x0000_0017, // ETHTOOL_STXCSUM
    0x0000_0019, // ETHTOOL_SSG
];

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// Switches off all that makes packets of an interface, in the namespace of this thread, longer than its MTU or leaves
/// their checksums to it.
///
/// # Errors
/// If there is no such interface, or rights are missing.
pub fn no_offloads(interface: &str) -> io::Result<()> {
    let mut name = [0; libc::IFNAMSIZ];
    if interface.is_empty() || interface.len() >= name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (place, byte) in name.iter_mut().zip(interface.bytes()) {
        *place = byte as libc::c_char;
    }
    let socket: OwnedFd = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    for command in SWITCHES {
        let mut value = Value { command, data: 0 };
        let mut request = libc::ifreq {
            ifr_name: name,
            ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_data: (&raw mut value).cast() },
        };
        // SAFETY: the request and the value that it points to are alive and of the kinds that SIOCETHTOOL takes for
        // these commands: the kernel reads a `struct ethtool_value`, and writes nothing beyond it.
        let done =
            unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
        if done < 0 {
            let error = io::Error::last_os_error();
            // A device that has no such switch does no such thing.
            if error.raw_os_error() != Some(libc::EOPNOTSUPP) {
                return Err(error);
            }
        }
    }
    Ok(())
}
