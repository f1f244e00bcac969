//! The control socket of `cast agent`: what applications write to the agent, and what the agent writes to them.

use std::io::Write as _;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use rackweave_cast::control::{Request, check_line, stream};
use rackweave_cast::sink::{PipeSink, Sink};

/// The socket's buffer holds this much, so that one thread can write before it reads.
const MOST: usize = 64 << 10;

/// Any bytes as the first line of an application, or as what an agent writes to an application that receives.
///
/// # Panics
/// If a request is not what its own line is parsed to.
pub fn control_socket(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    if kind % 2 == 0 {
        request(bytes);
    } else {
        receives(&bytes[..bytes.len().min(MOST)]);
    }
}

fn request(bytes: &[u8]) {
    let line = match check_line(bytes) {
        Ok(Request::Send(request)) => request.line(),
        Ok(Request::Receive(request)) => request.line(),
        Ok(Request::Sessions) => return,
        Err(error) => return assert!(!error.is_empty()),
    };
    let again = check_line(line.to_string().as_bytes());
    let same = match (check_line(bytes), again) {
        (Ok(first), Ok(again)) => format!("{first:?}") == format!("{again:?}"),
        _ => false,
    };
    assert!(same, "{line}");
}

fn receives(bytes: &[u8]) {
    let Ok((mut agent, application)) = UnixStream::pair() else { return };
    if agent.write_all(bytes).is_err() || agent.shutdown(Shutdown::Write).is_err() {
        return;
    }
    let Ok(Ok(mut offered)) = stream::wait(application) else { return };
    let make = |_, _: &_| Ok(Box::new(PipeSink::new(std::io::sink())) as Box<dyn Sink>);
    if let Ok(sink) = stream::receive(&mut offered, make) {
        assert!(sink.is_complete());
    }
}
