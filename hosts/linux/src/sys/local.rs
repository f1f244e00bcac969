//! Unix sockets that only their owner can use, and the folder for them.

use std::fs::{DirBuilder, symlink_metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};

/// How many connections may wait for [`UnixListener::accept`].
const BACKLOG: i32 = 16;

/// The name of the project's folder in a folder for files of running processes.
const FOLDER: &str = "rackweave";

/// Returns where sockets and other files of this user's running processes belong: `/run/rackweave` for root; for another user
/// `rackweave` in `$XDG_RUNTIME_DIR` (XDG Base Directory Specification 0.8) or `/run/user/UID`, whichever is first the user's own
/// and closed to changes by others, or else `~/.rackweave`. It is never in a folder in which others can create files, where
/// they could create it first.
///
/// # Errors
/// If there is none of these; the error says which were tried.
pub fn runtime_folder() -> io::Result<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    folder_of(rustix::process::geteuid().as_raw(), variable("XDG_RUNTIME_DIR"), variable("HOME"))
}

/// Returns [`runtime_folder`] for a user and the values of `$XDG_RUNTIME_DIR` and `$HOME`.
fn folder_of(user: u32, runtime: Option<PathBuf>, home: Option<PathBuf>) -> io::Result<PathBuf> {
    // Not root's variables: sudo can keep those of the user who calls it.
    if user == 0 {
        return Ok(Path::new("/run").join(FOLDER));
    }
    let usable = |folder: &PathBuf| folder.is_absolute() && check(folder, user).is_ok();
    let ready = Some(PathBuf::from(format!("/run/user/{user}")));
    if let Some(folder) = [runtime, ready].into_iter().flatten().find(usable) {
        return Ok(folder.join(FOLDER));
    }
    home.filter(usable).map(|home| home.join(format!(".{FOLDER}"))).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::NotFound,
            format!(
                "no folder for sockets: neither $XDG_RUNTIME_DIR, /run/user/{user} nor $HOME is a folder that only user {user} \
                 can change"
            ),
        )
    })
}

/// Returns [`runtime_folder`], and creates it (mode 0700) if it does not exist.
///
/// # Errors
/// If it cannot be created, is a link or no folder, belongs to another user, or can be changed by others.
pub fn make_runtime_folder() -> io::Result<PathBuf> {
    let folder = runtime_folder()?;
    make(&folder, rustix::process::geteuid().as_raw())?;
    Ok(folder)
}

fn make(folder: &Path, user: u32) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(io::Error::new(
            error.kind(),
            format!("cannot create {}: {error}", folder.display()),
        )),
        _ => check(folder, user),
    }
}

/// Checks that a folder is the user's, that nobody else can change it, and that it is not reached through a link: whose target
/// could be another one at each use.
fn check(folder: &Path, user: u32) -> io::Result<()> {
    let there = symlink_metadata(folder)?;
    let wrong = if !there.is_dir() {
        "it is not a folder".to_owned()
    } else if there.uid() != user {
        format!("it belongs to user {}", there.uid())
    } else if there.mode() & 0o022 != 0 {
        format!("other users can change it (mode {:04o})", there.mode() & 0o7777)
    } else {
        return Ok(());
    };
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("{} is not used: {wrong}", folder.display()),
    ))
}

/// Opens a Unix socket at a path, which nobody but the owner may connect to (mode 0600). A socket that is there already is removed
/// if no process listens to it.
///
/// # Errors
/// If the path is in use or cannot be created.
pub fn listen_privately(path: &Path) -> io::Result<UnixListener> {
    if let Ok(there) = symlink_metadata(path) {
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
    // The file that `bind` creates gets the mode of the socket (less the umask), which `unix_bind` of Linux
    // takes from it. By its path, the file could be another one by then, if others can change the folder.
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(0o600))?;
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Connects to a Unix socket if the process that listens there belongs to the user of this process, or to root.
///
/// # Errors
/// [`PermissionDenied`](io::ErrorKind::PermissionDenied) if it belongs to another user, or the system's error.
pub fn connect_to_own(path: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(path)?;
    if is_own(&stream) {
        return Ok(stream);
    }
    let user = rustix::net::sockopt::socket_peercred(&stream)?.uid.as_raw();
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!(
            "the process that listens there belongs to user {user}, neither to this user nor to root"
        ),
    ))
}

/// Whether the process at the other end of a connection belongs to the user of this process, or to root: unix(7), `SO_PEERCRED`. At
/// the connecting end that is the process that called `listen`.
#[must_use]
pub fn is_own(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid();
    rustix::net::sockopt::socket_peercred(stream)
        .is_ok_and(|peer| peer.uid == own || peer.uid.is_root())
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_socket_is_its_owners_and_a_dead_one_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let listener = listen_privately(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let stream = connect_to_own(&path).unwrap();
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

    /// Someone who can change the folder puts a link to a file of this user in the place of each new socket.
    #[test]
    fn a_link_in_the_place_of_the_socket_changes_no_other_file() {
        let folder = tempfile::tempdir().unwrap();
        let (path, victim) = (folder.path().join("control"), folder.path().join("victim"));
        std::fs::write(&victim, "x").unwrap();
        set_permissions(&victim, Permissions::from_mode(0o644)).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let link = folder.path().join("link");
                while !done.load(Ordering::Relaxed) {
                    symlink(&victim, &link).unwrap();
                    std::fs::rename(&link, &path).unwrap();
                    let _ = std::fs::remove_file(&path);
                }
            });
            for _ in 0..20_000 {
                let _ = listen_privately(&path);
            }
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(std::fs::metadata(&victim).unwrap().permissions().mode() & 0o777, 0o644);
    }

    #[test]
    fn roots_folder_does_not_depend_on_the_environment() {
        let own = tempfile::tempdir().unwrap();
        let folder = folder_of(0, Some(own.path().into()), Some(own.path().into())).unwrap();
        assert_eq!(folder, Path::new("/run/rackweave"));
    }

    #[test]
    fn a_folder_that_others_can_change_is_not_used() {
        let user = 54_321;
        let folders = tempfile::tempdir().unwrap();
        let (open, own) = (folders.path().join("open"), folders.path().join("own"));
        for folder in [&open, &own] {
            DirBuilder::new().mode(0o700).create(folder).unwrap();
        }
        set_permissions(&open, Permissions::from_mode(0o1777)).unwrap();
        let me = rustix::process::geteuid().as_raw();
        let choose = |runtime: &Path, home: &Path, user| {
            folder_of(user, Some(runtime.to_owned()), Some(home.to_owned()))
        };
        // The folders belong to the user of this process.
        assert!(choose(&own, &own, user).unwrap_err().to_string().contains("user 54321"));
        if !rustix::process::geteuid().is_root() {
            assert_eq!(choose(&own, &open, me).unwrap(), own.join("rackweave"));
        }
        let (there, link) = (folders.path().join("there"), folders.path().join("link"));
        make(&there, me).unwrap();
        assert_eq!(std::fs::metadata(&there).unwrap().permissions().mode() & 0o777, 0o700);
        make(&there, me).unwrap();
        symlink(&there, &link).unwrap();
        assert!(make(&link, me).unwrap_err().to_string().contains("not a folder"));
        assert!(make(&there, user).unwrap_err().to_string().contains("belongs to user"));
        set_permissions(&there, Permissions::from_mode(0o777)).unwrap();
        assert!(make(&there, me).unwrap_err().to_string().contains("mode 0777"));
        assert!(make(&folders.path().join("a/b"), me).is_err());
        if chown(&own, Some(user), None).is_err() {
            println!("skipped: needs root");
            return;
        }
        assert_eq!(choose(&own, &open, user).unwrap(), own.join("rackweave"));
        assert_eq!(choose(&open, &own, user).unwrap(), own.join(".rackweave"));
        chown(&open, Some(user), None).unwrap();
        assert!(choose(&open, &open, user).is_err());
    }
}
