//! Settings of an interface that need an ioctl: its offloads and its address.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketType, socket};

/// Commands of `linux/ethtool.h` that set the flags of segmentation (TSO, GSO), receive offload (GRO), transmit checksums and
/// scatter-gather.
const OFFLOADS: [u32; 5] = [
    0x0000_001f, // ETHTOOL_STSO
    0x0000_0024, // ETHTOOL_SGSO
    0x0000_002c, // ETHTOOL_SGRO
    0x0000_0017, // ETHTOOL_STXCSUM
    0x0000_0019, // ETHTOOL_SSG
];

/// The kernel's `struct ethtool_value`, which holds a command and its value.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// The IPv4 address of an interface, in the namespace of this thread.
///
/// # Errors
/// If there is no such interface, or it has no address.
pub fn address_of(interface: &str) -> io::Result<Ipv4Addr> {
    let socket: OwnedFd = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    // SAFETY: all fields of a sockaddr are integers, for which zeros are valid.
    let empty: libc::sockaddr = unsafe { std::mem::zeroed() };
    let mut request = libc::ifreq {
        ifr_name: name_of(interface)?,
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_addr: empty },
    };
    // SAFETY: the request is alive and of the type that SIOCGIFADDR fills. For an AF_INET socket it holds an IPv4
    // address, whose four bytes follow the family and the port.
    unsafe {
        if libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFADDR as _, &raw mut request) < 0 {
            return Err(io::Error::last_os_error());
        }
        let data = request.ifr_ifru.ifru_addr.sa_data;
        Ok(Ipv4Addr::from([data[2] as u8, data[3] as u8, data[4] as u8, data[5] as u8]))
    }
}

fn name_of(interface: &str) -> io::Result<[libc::c_char; libc::IFNAMSIZ]> {
    let mut name = [0; libc::IFNAMSIZ];
    if interface.is_empty() || interface.len() >= name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (place, byte) in name.iter_mut().zip(interface.bytes()) {
        *place = byte as libc::c_char;
    }
    Ok(name)
}

/// Turns off the offloads of an interface, in the namespace of this thread, that cause packets longer than its MTU or without
/// checksums.
///
/// # Errors
/// If there is no such interface, or a capability is missing.
pub fn no_offloads(interface: &str) -> io::Result<()> {
    let name = name_of(interface)?;
    let socket: OwnedFd = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    for command in OFFLOADS {
        let mut value = Value { command, data: 0 };
        let mut request = libc::ifreq {
            ifr_name: name,
            ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_data: (&raw mut value).cast() },
        };
        // SAFETY: the request and the value that it points to are alive and of the types that SIOCETHTOOL expects for
        // these commands: the kernel reads a `struct ethtool_value`, and writes nothing beyond it.
        let done =
            unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
        if done < 0 {
            let error = io::Error::last_os_error();
            // The device does not have this offload.
            if error.raw_os_error() != Some(libc::EOPNOTSUPP) {
                return Err(error);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_has_an_address_or_does_not_exist() {
        assert_eq!(address_of("lo").unwrap(), Ipv4Addr::LOCALHOST);
        assert!(address_of("no-such-thing").is_err() && address_of("").is_err());
    }
}
