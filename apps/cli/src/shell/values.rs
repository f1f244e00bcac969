//! Values of arguments that several commands have.

use std::net::{SocketAddr, ToSocketAddrs as _};

use rackweave_core::Rate;

/// Parses `HOST`, `HOST:PORT` or an address into all its addresses; there is at least one.
///
/// # Errors
/// If there is no such address or name.
pub(crate) fn addresses(
    text: &str,
    port: u16,
) -> Result<impl Iterator<Item = SocketAddr> + use<>, String> {
    let wrong = || {
        format!(
            "`{text}` is neither an IP address nor a resolvable host name (expected HOST or HOST:PORT)"
        )
    };
    let found = text
        .to_socket_addrs()
        .or_else(|_| (text.trim_matches(['[', ']']), port).to_socket_addrs())
        .map_err(|_| wrong())?;
    let mut found = found.peekable();
    found.peek().ok_or_else(wrong)?;
    Ok(found)
}

/// Parses `HOST`, `HOST:PORT` or an address into the first of its addresses.
///
/// # Errors
/// If there is no such address or name.
pub(crate) fn address(text: &str, port: u16) -> Result<SocketAddr, String> {
    addresses(text, port)?.next().ok_or_else(|| format!("`{text}` has no address"))
}

/// Parses a rate at which something is to be sent.
///
/// # Errors
/// If it is no rate, or 0.
pub(crate) fn positive_rate(text: &str) -> Result<Rate, String> {
    let rate: Rate = text.parse().map_err(|error| format!("{error}"))?;
    if rate.0 > 0 { Ok(rate) } else { Err("it must be above zero".into()) }
}

/// Reads a list of hosts. A device without an end is not one, and the mark that Windows' editors put at the beginning of UTF-8 is no part of it.
///
/// # Errors
/// If the file cannot be read, is too large, or is not UTF-8.
pub(crate) fn read_list(path: &str) -> std::io::Result<String> {
    use std::io::{Error, ErrorKind, Read as _};
    const MOST_BYTES: usize = 16 << 20;
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(MOST_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > MOST_BYTES {
        return Err(Error::new(ErrorKind::FileTooLarge, "it has more than 16 MiB"));
    }
    let text = String::from_utf8(bytes);
    let text = text.map_err(|_| Error::new(ErrorKind::InvalidData, "it is not UTF-8 text"))?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}
