use bytes::Bytes;
use proptest::prelude::*;

use super::*;

const SESSION: Session = Session(7);

/// The time of a step of `all_bytes_are_verified`.
const STEP: Span = Span::from_ms(7);

/// A stream in memory, which counts the bytes that are read.
struct Memory {
    bytes: Bytes,
    read: u64,
}

impl Memory {
    fn new(len: usize) -> Self {
        Self { bytes: (0..len).map(|at| (at / 7) as u8).collect(), read: 0 }
    }
}

impl Source for Memory {
    fn stream(&self) -> u128 {
        0
    }

    fn available(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn end(&self) -> Option<u64> {
        Some(self.available())
    }

    fn content(&self) -> u64 {
        self.available()
    }

    fn read(&mut self, offset: u64, len: usize, out: &mut Payload) -> Result<(), SourceError> {
        let from = offset as usize;
        self.read += len as u64;
        out.push(self.bytes.slice(from..from + len));
        Ok(())
    }
}

fn request(from: u64, upto: u64, partial: bool) -> HashRequest {
    HashRequest { session: SESSION, nonce: 3, from, upto, partial }
}

/// Accepts what can be verified of the first `readable` bytes of a stream; panics if a hash is not that of the bytes.
fn verify(verifier: &mut Verifier, source: &Memory, readable: u64) {
    while let Some((range, hash)) = verifier.next(readable) {
        let bytes = &source.bytes[range.start as usize..range.end as usize];
        assert_eq!(*blake3::hash(bytes).as_bytes(), hash);
        verifier.accept(Time::ZERO);
    }
}

#[test]
fn work_and_memory_for_requests_are_bounded() {
    let (mut cache, mut source) = (HashCache::default(), Memory::new(10 << 20));
    let all = request(0, (1 << 48) - 1, true);
    for fresh in 1..=4 {
        source.read = 0;
        let (answer, error) = cache.answer(&mut source, &all, (10 << 20, true), &mut { u64::MAX });
        assert!(error.is_none() && !answer.ended);
        assert_eq!(answer.hashes.len(), MAX_HASHES.min(fresh * FRESH_HASHES));
        assert!(source.read <= FRESH_HASHES as u64 * BLOCK);
        let mut bytes = Vec::new();
        answer.encode(&mut bytes);
        // With the clear fields and tags of a sealed packet, and the headers, it fits in an IP packet of 296 bytes.
        assert!(bytes.len() + 1 + 14 + 16 + 28 <= 296, "{}", bytes.len());
        assert_eq!(BlockHashes::decode(&bytes), Some(answer));
    }
    // The bytes of the answers were read once.
    source.read = 0;
    let _ = cache.answer(&mut source, &all, (10 << 20, true), &mut { u64::MAX });
    assert_eq!(source.read, 0);
    // A receiver that has had its share gets what is known, and nothing else.
    let (some, mut share) = (request(5, 9 << 20, true), BLOCK - 5);
    let (answer, _) = cache.answer(&mut source, &some, (10 << 20, true), &mut share);
    assert_eq!((answer.upto, share, source.read), (6 * BLOCK, 0, BLOCK - 5));
    let (answer, _) = cache.answer(&mut source, &some, (10 << 20, true), &mut share);
    assert_eq!((answer.upto, share, source.read), (5, 0, BLOCK - 5));
    for block in 0..2 * KEPT_HASHES as u64 {
        cache.keep(block * BLOCK, [0; 32]);
    }
    assert_eq!(cache.blocks.len(), KEPT_HASHES);
}

/// A stream that cannot be read yet.
struct Unready(u64);

impl Source for Unready {
    fn stream(&self) -> u128 {
        0
    }

    fn available(&self) -> u64 {
        1 << 40
    }

    fn end(&self) -> Option<u64> {
        Some(1 << 40)
    }

    fn content(&self) -> u64 {
        1 << 40
    }

    fn read(&mut self, offset: u64, _: usize, _: &mut Payload) -> Result<(), SourceError> {
        self.0 += 1;
        Err(SourceError::NotYet(offset))
    }
}

#[test]
fn requests_for_what_cannot_be_read_yet_are_bounded() {
    let (mut cache, mut source, mut share) = (HashCache::default(), Unready(0), 32 * BLOCK);
    for n in 0..10_000_u64 {
        let asked = request(n % 20 * BLOCK, 20 * BLOCK, true);
        let (answer, _) = cache.answer(&mut source, &asked, (1 << 40, true), &mut share);
        assert_eq!((answer.upto, answer.hashes.len()), (asked.from, 0));
    }
    // What is left is less than a block.
    assert!(source.0 <= 32 * BLOCK / READ && share < BLOCK, "{} {share}", source.0);
}

#[test]
fn an_answer_ends_at_a_block_or_where_it_was_asked_to() {
    let (mut cache, mut source) = (HashCache::default(), Memory::new(3 << 20));
    let mut answer = |from, upto, partial, available, ended| {
        let asked = request(from, upto, partial);
        let (answer, _) = cache.answer(&mut source, &asked, (available, ended), &mut { u64::MAX });
        (answer.from, answer.upto, answer.ended)
    };
    let (block, half) = (BLOCK, BLOCK / 2);
    assert_eq!(answer(0, 3 * block, false, block + half, false), (0, block, false));
    assert_eq!(answer(block, block + half, true, 2 * block, false), (block, block + half, false));
    assert_eq!(answer(half, 9 * block, false, block + half, true), (half, block + half, true));
    // A receiver that claims to have more than was sent gets no hash of it.
    assert_eq!(answer(block, 2 * block, true, block + half, false), (block, block, false));
    assert_eq!(answer(2 * block, 2 * block + 5, true, block, false), (2 * block, 2 * block, false));
    assert_eq!(answer(2 * block, 9 * block, true, block, true), (2 * block, 2 * block, false));
}

#[test]
fn a_skip_into_a_block_needs_another_hash() {
    let mut source = Memory::new(3 << 20);
    for skipped in [BLOCK / 2, BLOCK, BLOCK + 1, 3 * BLOCK] {
        let mut cache = HashCache::default();
        let mut verifier = Verifier::new(Time::ZERO, 3);
        let asked = verifier.poll(Time::ZERO, SESSION, 1, false).unwrap();
        let (answer, _) = cache.answer(&mut source, &asked, (3 << 20, true), &mut { u64::MAX });
        verifier.handle_hashes(Time::ZERO, &answer);
        assert_eq!(verifier.known_upto(), 2 * BLOCK);
        verifier.skip(skipped);
        assert_eq!(verifier.verified, skipped);
        let kept = skipped == BLOCK;
        assert_eq!(verifier.known_upto(), if kept { 2 * BLOCK } else { skipped });
        verify(&mut verifier, &source, 2 * BLOCK);
    }
}

/// An answer to another receiver, or of another request, changes nothing.
#[test]
fn only_answers_to_the_request_count() {
    let mut verifier = Verifier::new(Time::ZERO, 3);
    let hashes = BlockHashes {
        session: SESSION,
        nonce: 3,
        from: 0,
        upto: 5,
        ended: true,
        hashes: vec![[1; 32]],
    };
    verifier.handle_hashes(Time::ZERO, &hashes);
    assert_eq!((verifier.known_upto(), verifier.length), (0, None));
    let _ = verifier.poll(Time::ZERO, SESSION, 5, true).unwrap();
    for other in
        [BlockHashes { nonce: 4, ..hashes.clone() }, BlockHashes { from: 1, ..hashes.clone() }]
    {
        verifier.handle_hashes(Time::ZERO, &other);
        assert_eq!((verifier.known_upto(), verifier.length), (0, None));
    }
    verifier.handle_hashes(Time::ZERO, &hashes);
    assert_eq!((verifier.known_upto(), verifier.length), (5, Some(5)));
}

/// Of a sender's packets only the smallest reach a receiver behind a small MTU, some a second, and all of them count as replays if
/// another receiver has used later numbers. The sender would have given it up before it asks for a key of its own (`rackweave chaos store --seed
/// 554`). Some duplicates in a pause of the network, or many next to progress, are no reason.
#[test]
fn a_few_packets_that_count_as_replays_suffice_where_nothing_else_comes() {
    let at = |ms: u64| Time::ZERO + Span::from_ms(ms);
    let asked_after = |gap_ms: u64, replays: u64, progress: u64| {
        let mut verifier = Verifier::new(at(0), 3);
        (1..=replays).find_map(|n| {
            verifier.on_replay(400);
            let readable = n * progress;
            let hash = |_: Range<u64>| None;
            let checked = verifier.check(at(n * gap_ms), SESSION, readable, false, hash);
            checked.key_request.is_some().then_some(n * gap_ms)
        })
    };
    assert_eq!(asked_after(400, 30, 0), Some(3200));
    assert_eq!(asked_after(100, 100, 0), Some(2000));
    assert_eq!(asked_after(5, 200, 0), Some(500));
    assert_eq!(asked_after(400, 7, 0), None);
    assert_eq!(asked_after(100, 100, 200), None);
}

/// The sender's source keeps what a receiver has not verified. When a live stream pauses, the last request was from before its last
/// bytes.
#[test]
fn what_is_verified_is_acknowledged_when_a_stream_pauses() {
    let (mut cache, mut source) = (HashCache::default(), Memory::new(1000));
    let mut verifier = Verifier::new(Time::ZERO, 3);
    let asked = verifier.poll(Time::ZERO, SESSION, 1000, true).unwrap();
    let (answer, _) = cache.answer(&mut source, &asked, (1000, false), &mut { u64::MAX });
    let at = Time::ZERO + Span::from_ms(1);
    verifier.handle_hashes(at, &answer);
    let checked = verifier.check(at, SESSION, 1000, true, |_| Some(answer.hashes[0]));
    assert_eq!((verifier.verified(), checked.request), (1000, None));
    let due = at + ACK_AFTER;
    assert_eq!(checked.next, Some(due));
    let mut poll = |now| verifier.check(now, SESSION, 1000, true, |_| None).request;
    assert_eq!(poll(at + Span::from_ms(99)), None);
    let ack = request(1000, 1000, true);
    assert_eq!((poll(due), poll(due), poll(due + RETRY)), (Some(ack), None, Some(ack)));
    let (answer, _) = cache.answer(&mut source, &ack, (1000, false), &mut 0);
    assert!(answer.hashes.is_empty());
    verifier.handle_hashes(due, &answer);
    assert_eq!(
        verifier.check(due + Span::from_secs(9), SESSION, 1000, true, |_| None).request,
        None
    );
}

/// A receiver whose disk is slow has verified everything long before it is complete. Its sender gave it up after three seconds.
#[test]
fn the_end_of_a_stream_is_acknowledged() {
    let (mut cache, mut source) = (HashCache::default(), Memory::new(1000));
    let mut verifier = Verifier::new(Time::ZERO, 3);
    let asked = verifier.check(Time::ZERO, SESSION, 1000, true, |_| None).request.unwrap();
    let (answer, _) = cache.answer(&mut source, &asked, (1000, true), &mut { u64::MAX });
    assert!(answer.ended);
    verifier.handle_hashes(Time::ZERO, &answer);
    verify(&mut verifier, &source, 1000);
    let mut poll = |now| verifier.check(now, SESSION, 1000, true, |_| None).request;
    let due = Time::ZERO + Span::from_secs(1);
    assert_eq!(poll(due), Some(request(1000, 1000, true)));
    let (answer, _) = cache.answer(&mut source, &request(1000, 1000, true), (1000, true), &mut 0);
    verifier.handle_hashes(due, &answer);
    assert_eq!(verifier.check(due + RETRY, SESSION, 1000, true, |_| None).request, None);
}

proptest! {
    #![proptest_config(rackweave_testing::cases(24))]

    #[test]
    fn messages_come_back(
        session: u32, nonce: u64, from in 0..1_u64 << 40, len in 0..6_u64 << 20, flag: bool, cut in 0..30_usize
    ) {
        let session = Session(session);
        let sent = HashRequest { session, nonce, from, upto: from + len, partial: flag };
        let mut bytes = Vec::new();
        sent.encode(&mut bytes);
        prop_assert_eq!(HashRequest::decode(&bytes), Some(sent));
        prop_assert_eq!(HashRequest::decode(&bytes[..cut.min(28)]), None);
        let hashes: Vec<_> = pieces(from..from + len).map(|piece| [piece.end as u8; 32]).collect();
        let fits = hashes.len() <= MAX_HASHES;
        let sent = BlockHashes { session, nonce, from, upto: from + len, ended: flag, hashes };
        bytes.clear();
        sent.encode(&mut bytes);
        prop_assert_eq!(BlockHashes::decode(&bytes), fits.then_some(sent));
        prop_assert_eq!(BlockHashes::decode(&bytes[..bytes.len() - 1]), None);
        bytes.extend_from_slice(&[0; 32]);
        prop_assert_eq!(BlockHashes::decode(&bytes), None);
        let sent = KeyRequest { session, nonce };
        bytes.clear();
        sent.encode(&mut bytes);
        prop_assert_eq!(KeyRequest::decode(&bytes), Some((sent, &[][..])));
    }

    /// Whatever is lost and however the bytes arrive, all of them are verified in the end, and none wrongly.
    #[test]
    fn all_bytes_are_verified(
        length in 0..5_u64 << 20,
        begin in 0..2_u64 << 20,
        steps in prop::collection::vec((0..600_000_u64, 0..600_000_u64, any::<[bool; 3]>()), 1..200),
    ) {
        let (mut cache, mut source) = (HashCache::default(), Memory::new(length as usize));
        let mut verifier = Verifier::new(Time::ZERO, 3);
        let begin = begin.min(length);
        verifier.skip(begin);
        let (mut now, mut readable, mut available) = (Time::ZERO, begin, begin);
        // A request that was lost often is repeated after up to `RETRY_MAX`: so long the end must take, and the transfer of all.
        let last = 60 + (RETRY_MAX.as_ns() / STEP.as_ns()) as usize;
        let arrives = steps.into_iter().chain(std::iter::repeat_n((1 << 20, 1 << 20, [false; 3]), last));
        for (sent, arrived, [lost, flush, skips]) in arrives {
            available = (available + sent).min(length);
            readable = (readable + arrived).min(available);
            now += STEP;
            let all = readable == length;
            if skips {
                let to = readable.min(verifier.verified + 300_000);
                verifier.skip(to);
            }
            if let Some(asked) = verifier.poll(now, SESSION, readable, flush || all)
                && !lost
            {
                prop_assert!(asked.from == verifier.known_upto() && asked.from <= asked.upto);
                let (answer, _) = cache.answer(&mut source, &asked, (available, available == length), &mut { u64::MAX });
                verifier.handle_hashes(now, &answer);
            }
            prop_assert!(verifier.known.len() <= MAX_HASHES + 1);
            verify(&mut verifier, &source, readable);
            prop_assert!(verifier.verified <= readable);
        }
        prop_assert_eq!(verifier.verified, length);
        prop_assert!(verifier.poll(now + Span::from_secs(9), SESSION, length, true).is_none());
    }
}
