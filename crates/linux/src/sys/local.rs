//! Unix sockets that only their owner can use.

use std::fs::{Permissions, set_permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};

/// How many connections may wait for [`UnixListener::accept`].
const BACKLOG: i32 = 16;

/// Opens a Unix socket at a path, which nobody but the owner may connect to (mode 0600). A socket that is there already is removed
/// if no process listens to it.
///
/// # Errors
/// If the path is in use or cannot be created.
pub fn listen_privately(path: &Path) -> io::Result<UnixListener> {
    use std::os::unix::fs::FileTypeExt as _;
    if let Ok(there) = std::fs::symlink_metadata(path) {
        if !there.file_type().is_socket() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it exists and is no socket"));
        }
        match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path)?;
            }
            Ok(_) => {
                return Err(io::Error::new(
                    io::ErrorKind::AddrInUse,
                    "another process listens there",
                ));
            }
            Err(error) => return Err(error),
        }
    }
    let address = SocketAddrUnix::new(path)?;
    let kind = (AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC);
    let socket = socket_with(kind.0, kind.1, kind.2, None)?;
    bind(&socket, &address)?;
    // Before it listens, nobody can connect, so that there is no time in which others can.
    set_permissions(path, Permissions::from_mode(0o600))?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Whether the process at the other end of a connection belongs to the user of this process, or to root.
#[must_use]
pub fn is_own(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid();
    rustix::net::sockopt::socket_peercred(stream)
        .is_ok_and(|peer| peer.uid == own || peer.uid.is_root())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_its_owners_and_a_dead_one_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let listener = listen_privately(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let stream = UnixStream::connect(&path).unwrap();
        assert!(is_own(&stream) && is_own(&listener.accept().unwrap().0));
        let refused = listen_privately(&path).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        drop(listen_privately(&path).unwrap());
        std::fs::write(folder.path().join("file"), "x").unwrap();
        let refused = listen_privately(&folder.path().join("file")).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read_to_string(folder.path().join("file")).unwrap(), "x");
    }
}
