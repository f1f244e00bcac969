//! How [`super::State`] and the payload of [`super::Open`] name hosts and switches by numbers of 32 bits.

use std::net::Ipv4Addr;

use rackweave_core::HostId;

use crate::frame::{host_at, ip_address};

/// The number by which the states of a master name the master itself, where hosts are named by IPv4 addresses: that of the broadcast
/// address, which no host has. A master with several addresses need not know by which of them a worker reaches it.
pub const MASTER: HostId = HostId(u32::MAX);

/// Returns the number of the host or switch with an IPv4 address. For 10.0.0.0/8 it is the last 24 bits, as the
/// user-space switch numbers its hosts; for 172.16.0.0/12 the address of the switch with that number
/// ([`rackweave_core::Destination::Switch`]). For all others it is the address itself, most significant byte first.
/// `None` for addresses whose own number would be one of the first two, 0.0.0.0/8 and 128.0.0.0/12, and for multicast
/// and broadcast addresses. [`address_of`] is the inverse.
#[must_use]
pub const fn number_of(address: Ipv4Addr) -> Option<HostId> {
    let octets = address.octets();
    match octets {
        [10, ..] | [172, 16..32, ..] => host_at(octets),
        [0 | 224..=255, ..] | [128, 0..16, ..] => None,
        _ => Some(HostId(u32::from_be_bytes(octets))),
    }
}

/// Returns the IPv4 address of a host or switch by its number; `None` if no address has this number. [`number_of`] is the inverse.
#[must_use]
pub const fn address_of(number: HostId) -> Option<Ipv4Addr> {
    let [a, b, c, d] = match ip_address(number) {
        Some(octets) => octets,
        None => number.0.to_be_bytes(),
    };
    let address = Ipv4Addr::new(a, b, c, d);
    match number_of(address) {
        Some(HostId(again)) if again == number.0 => Some(address),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use rackweave_core::Destination;

    use super::*;

    #[test]
    fn hosts_and_switches_of_the_user_space_switch_have_its_numbers() {
        let number = |address: [u8; 4]| number_of(Ipv4Addr::from(address));
        assert_eq!(number([10, 0, 1, 2]), Some(HostId(258)));
        assert_eq!(number([172, 16, 0, 3]), Some(Destination::Switch(3).address()));
        assert_eq!(number([192, 0, 2, 1]), Some(HostId(0xc000_0201)));
        assert_eq!(number([172, 32, 0, 1]), Some(HostId(0xac20_0001)));
        for none in [[0, 0, 0, 7], [128, 0, 0, 1], [224, 0, 0, 1], [255; 4]] {
            assert_eq!(number(none), None, "{none:?}");
        }
    }

    #[test]
    fn every_number_is_that_of_one_address_at_most() {
        let mut addresses = 0;
        for bits in (0..=u32::MAX).step_by(65_537) {
            let address = Ipv4Addr::from_bits(bits);
            if let Some(number) = number_of(address) {
                assert_eq!(address_of(number), Some(address));
                addresses += 1;
            }
            if let Some(address) = address_of(HostId(bits)) {
                assert_eq!(number_of(address), Some(HostId(bits)));
            }
        }
        assert!(addresses > 50_000);
        assert_eq!(address_of(MASTER), None);
        // The numbers of addresses in 10.0.0.0/8 and 172.16.0.0/12 are the hosts' and switches' own.
        assert_eq!(address_of(HostId(u32::from_be_bytes([10, 0, 0, 1]))), None);
    }
}
