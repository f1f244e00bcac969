//! Hosts and keys in the arguments of `rackweave image serve` and `fetch`.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::Path;

use crate::shell::values;
use miette::{IntoDiagnostic as _, WrapErr as _, miette};
use rackweave_wire::frisbee::{Key, PORT};

/// Parses `HOST` or `HOST:PORT`.
pub(super) fn address(text: &str) -> Result<SocketAddrV4, String> {
    values::addresses(text, PORT)?
        .find_map(|address| match address {
            SocketAddr::V4(address) => Some(address),
            SocketAddr::V6(_) => None,
        })
        .ok_or_else(|| format!("`{text}` has no IPv4 address, which imaging needs"))
}

/// Parses `HOST`. A port would have no effect, as all hosts use that of their server.
pub(super) fn host(text: &str) -> Result<Ipv4Addr, String> {
    if text.contains(':') {
        return Err("expected a host without a port: all hosts use the port of the server".into());
    }
    address(text).map(|address| *address.ip())
}

/// Parses `GROUP` or `GROUP:PORT`: an address of administratively scoped multicast.
pub(super) fn group(text: &str) -> Result<(Ipv4Addr, Option<u16>), String> {
    let wrong = || {
        format!(
            "`{text}` is not a group of 239.0.0.0/8, such as 239.255.67.23, or one with a UDP port"
        )
    };
    let (group, port) = match text.split_once(':') {
        Some((group, port)) => (group, Some(port.parse::<u16>().map_err(|_| wrong())?)),
        None => (text, None),
    };
    let group: Ipv4Addr = group.parse().map_err(|_| wrong())?;
    let is_right = group.octets()[0] == 239 && port != Some(0);
    if is_right { Ok((group, port)) } else { Err(wrong()) }
}

/// Parses `GROUP:PORT`: any address of multicast, as the choice is another server's.
pub(super) fn any_group(text: &str) -> Result<(Ipv4Addr, Option<u16>), String> {
    let session = text
        .parse()
        .ok()
        .filter(|session: &SocketAddrV4| session.ip().is_multicast() && session.port() > 0);
    let session = session.map(|session| (*session.ip(), Some(session.port())));
    session.ok_or_else(|| format!("`{text}` is not a group and a port, such as 239.192.0.1:7001"))
}

/// Resolves `HOST`, or `@FILE` with a host on each line.
pub(super) fn hosts(option: &str, texts: &[String]) -> miette::Result<Option<BTreeSet<Ipv4Addr>>> {
    if texts.is_empty() {
        return Ok(None);
    }
    let mut hosts = BTreeSet::new();
    for text in texts {
        let Some(file) = text.strip_prefix('@') else {
            hosts.insert(host(text).map_err(|why| miette!("--{option}: {why}"))?);
            continue;
        };
        let list = values::read_list(file)
            .into_diagnostic()
            .wrap_err_with(|| format!("--{option}: cannot read {file}"))?;
        for (number, line) in (1..).zip(list.lines()) {
            let line = line.split('#').next().unwrap_or_default().trim();
            if !line.is_empty() {
                let found = host(line).map_err(|why| miette!("--{option}: {file}:{number}: {why}"));
                hosts.insert(found?);
            }
        }
    }
    if hosts.is_empty() {
        return Err(miette!("--{option} names no host"));
    }
    Ok(Some(hosts))
}

/// Reads the key that all hosts share.
pub(super) fn key(file: Option<&Path>) -> miette::Result<Option<Key>> {
    let secret = file.map(crate::secret::read).transpose()?;
    Ok(secret.map(|secret| Key::derive(&secret)))
}

#[cfg(test)]
mod tests {
    use super::host;

    #[test]
    fn a_host_has_no_port() {
        assert_eq!(host("127.0.0.2"), Ok([127, 0, 0, 2].into()));
        assert!(host("127.0.0.2:6723").unwrap_err().contains("without a port"));
    }
}
