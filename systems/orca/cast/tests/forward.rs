//! A receiver over TCP connects to other hosts only if its user says so: their addresses are what a sender writes.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};

use rackweave_cast::baseline;
use rackweave_cast::sink::{PipeSink, Sink};

#[test]
fn a_receiver_connects_to_nobody_unless_it_forwards() {
    for forwards in [false, true] {
        let [listener, next] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let address = listener.local_addr().unwrap();
        let victim = next.local_addr().unwrap();
        let receiver = std::thread::spawn(move || {
            let sink = |_| Ok(Box::new(PipeSink::new(std::io::sink())) as Box<dyn Sink>);
            baseline::receive(&listener, forwards, |_| true, sink).unwrap()
        });
        let mut sender = TcpStream::connect(address).unwrap();
        sender.write_all(format!("rackweave-cast 1 {:032x} {victim}\n", 7).as_bytes()).unwrap();
        if forwards {
            let mut line = vec![0; 16];
            next.accept().unwrap().0.read_exact(&mut line).unwrap();
            assert_eq!(line, b"rackweave-cast 1");
            continue;
        }
        sender.write_all(&[0; 100_000]).unwrap();
        sender.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        sender.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("--forward") && answer.lines().count() == 2, "{answer}");
        assert!(receiver.join().unwrap().error.unwrap().contains("--forward"));
        next.set_nonblocking(true).unwrap();
        assert!(next.accept().is_err());
    }
}
