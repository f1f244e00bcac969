//! What the protection of packets costs: `cargo bench -p rackweave-crypt --bench seal`. Throughput is of the payload; divide
//! the processor's frequency by it for cycles per byte.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rackweave_core::{Span, Time};
use rackweave_crypt::handshake::{self, Terms};
use rackweave_crypt::{Cipher, Key, Offers, Session};

fn key() -> Key {
    Key::derive(&[1; 32]).unwrap()
}

fn terms(cipher: Cipher) -> Terms {
    Terms { ciphers: 3, cipher, asker: 1, offerer: 2, nonce: 3, stamp: 4 }
}

fn sessions(cipher: Cipher) -> [Session; 2] {
    let (key, terms) = (key(), terms(cipher));
    let offer = handshake::offer(&key, &terms, [5; 32]).unwrap();
    let (message, asker) = handshake::accept(&key, &terms, &offer, [6; 32]).unwrap();
    [asker, handshake::conclude(&key, &terms, [5; 32], &message).unwrap()]
}

fn clear(id: u32, counter: u64, out: &mut Vec<u8>) {
    out.extend([0xa2, 3]);
    out.extend(id.to_be_bytes());
    out.extend(counter.to_be_bytes());
}

fn packets(criterion: &mut Criterion) {
    for (name, cipher) in
        [("AES-256-GCM", Cipher::Aes256Gcm), ("ChaCha20-Poly1305", Cipher::ChaCha20Poly1305)]
    {
        for len in [100, 1400] {
            let payload = vec![7_u8; len];
            let mut group = criterion.benchmark_group(format!("{name}, {len} bytes"));
            group.throughput(Throughput::Bytes(len as u64));
            group.bench_function("copied only", |bencher| {
                let mut out = Vec::with_capacity(2000);
                bencher.iter(|| {
                    out.clear();
                    clear(1, 2, &mut out);
                    out.extend_from_slice(black_box(&payload));
                    black_box(&out);
                });
            });
            group.bench_function("seal", |bencher| {
                let [mut from, _] = sessions(cipher);
                let mut out = Vec::with_capacity(2000);
                bencher.iter(|| {
                    out.clear();
                    let body = |out: &mut Vec<u8>| out.extend_from_slice(black_box(&payload));
                    if from.seal(&mut out, clear, body).is_err() {
                        [from, _] = sessions(cipher);
                    }
                    black_box(&out);
                });
            });
            group.bench_function("seal and open", |bencher| {
                let [mut from, mut to] = sessions(cipher);
                let mut out = Vec::with_capacity(2000);
                bencher.iter(|| {
                    out.clear();
                    let body = |out: &mut Vec<u8>| out.extend_from_slice(black_box(&payload));
                    let counter = from.sealed();
                    if from.seal(&mut out, clear, body).is_err() {
                        [from, to] = sessions(cipher);
                        return;
                    }
                    let (clear, sealed) = out.split_at_mut(14);
                    black_box(to.open(counter, clear, sealed).unwrap());
                });
            });
            group.finish();
        }
    }
}

fn handshakes(criterion: &mut Criterion) {
    let (key, terms) = (key(), terms(Cipher::Aes256Gcm));
    let offer = handshake::offer(&key, &terms, [5; 32]).unwrap();
    let (message, _) = handshake::accept(&key, &terms, &offer, [6; 32]).unwrap();
    let mut group = criterion.benchmark_group("handshake");
    group.bench_function("tag of an ask", |bencher| {
        let bytes = [0; 76];
        bencher.iter(|| key.tag(black_box(&bytes)));
    });
    group.bench_function("offer", |bencher| {
        let mut offers = Offers::default();
        let now = Time::ZERO + Span::from_us(1);
        offers.advance(now, || [9; 32]);
        let terms = Terms { stamp: now.ticks(), ..terms };
        bencher.iter(|| {
            let ephemeral = offers.ephemeral(now, b"address", black_box(&terms)).unwrap();
            handshake::offer(&key, &terms, ephemeral).unwrap()
        });
    });
    group.bench_function("accept", |bencher| {
        bencher.iter(|| handshake::accept(&key, &terms, black_box(&offer), [6; 32]).unwrap());
    });
    group.bench_function("conclude", |bencher| {
        bencher.iter(|| handshake::conclude(&key, &terms, [5; 32], black_box(&message)).unwrap());
    });
    group.finish();
}

criterion_group!(benches, packets, handshakes);
criterion_main!(benches);
