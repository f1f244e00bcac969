use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use proptest::prelude::*;

use super::fault::FAULT;
use super::*;

const CONTENT: Hash = [7; 32];

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 7) as u8 ^ (i / 100_000) as u8 | 1).collect()
}

fn config(folder: &Path, len: usize) -> BlockConfig {
    let dir = Dir::open(folder).unwrap();
    BlockConfig {
        table: Some(dir.entry("x.blocks".as_ref())),
        content: CONTENT,
        resume: true,
        ..BlockConfig::new(dir.entry("x".as_ref()), len as u64)
    }
}

fn block(content: &[u8], number: u64) -> &[u8] {
    content.chunks(CHUNK).nth(number as usize).unwrap()
}

fn hash(content: &[u8], number: u64) -> Hash {
    chunk_hash(number, block(content, number)).0
}

fn blocks(content: &[u8]) -> u64 {
    content.len().div_ceil(CHUNK) as u64
}

/// Returns the blocks that the file has, judged by its bytes.
fn right(folder: &Path, content: &[u8]) -> BTreeSet<u64> {
    let place = match folder.join("x").exists() {
        true => "x",
        false => "x.part",
    };
    let mut there = std::fs::read(folder.join(place)).unwrap_or_default();
    there.resize(content.len(), 0);
    (0..blocks(content)).filter(|it| block(&there, *it) == block(content, *it)).collect()
}

fn have(store: &BlockStore, content: &[u8]) -> BTreeSet<u64> {
    (0..blocks(content)).filter(|it| store.have().contains(*it)).collect()
}

/// Writes and verifies all missing blocks, last one first, and gives the file its final name.
fn complete(mut store: BlockStore, content: &[u8]) -> Result<(), StoreError> {
    let mut missing: Vec<u64> = store.have().missing().collect();
    missing.reverse();
    for number in missing {
        store.write_at(number * CHUNK as u64, block(content, number))?;
        assert!(store.verify(number, &hash(content, number))?, "block {number}");
    }
    store.finish(&Finish::default())
}

#[derive(Clone, Debug)]
enum Op {
    Write(u64),
    /// Write part of the bytes of a block.
    Piece(u64, usize, usize),
    Damaged(u64, usize),
    Verify(u64),
    /// Write a block with the hash of another one.
    Mistaken(u64),
    Reopen,
    /// Change a byte on the disk while the store is closed.
    Rot(usize),
    /// Truncate the file at this byte while the store is closed.
    Cut(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let number = 0..5_u64;
    prop_oneof![
        6 => number.clone().prop_map(Op::Write),
        2 => (number.clone(), 0..CHUNK, 1..CHUNK).prop_map(|(n, at, len)| Op::Piece(n, at, len)),
        2 => (number.clone(), 0..CHUNK).prop_map(|(n, at)| Op::Damaged(n, at)),
        6 => number.clone().prop_map(Op::Verify),
        1 => number.prop_map(Op::Mistaken),
        2 => Just(Op::Reopen),
        1 => (0..5 * CHUNK).prop_map(Op::Rot),
        1 => (0..5 * CHUNK).prop_map(Op::Cut),
    ]
}

proptest! {
    #![proptest_config(rackweave_testing::cases(48))]

    #[test]
    fn blocks_in_any_order_become_the_file_that_was_sent(
        len in 0..5 * CHUNK,
        ops in proptest::collection::vec(op(), 0..40),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let content = content(len);
        let open = || BlockStore::open(config(folder.path(), len)).unwrap();
        let mut store = open();
        let mut noted = BTreeSet::new();
        for op in ops {
            match op {
                Op::Write(n) | Op::Piece(n, ..) | Op::Damaged(n, _) | Op::Verify(n) | Op::Mistaken(n)
                    if n >= blocks(&content) =>
                {
                    prop_assert!(!store.verify(n, &CONTENT).unwrap());
                    let beyond = store.write_at(n * CHUNK as u64, &[0; 9]);
                    prop_assert!(matches!(beyond, Err(StoreError::Beyond { .. })), "{:?}", beyond);
                }
                Op::Write(n) => store.write_at(n * CHUNK as u64, block(&content, n)).unwrap(),
                Op::Piece(n, at, len) => {
                    let bytes = block(&content, n);
                    let at = at % bytes.len();
                    let bytes = &bytes[at..bytes.len().min(at + len)];
                    store.write_at(n * CHUNK as u64 + at as u64, bytes).unwrap();
                }
                Op::Damaged(n, at) => {
                    let mut bytes = block(&content, n).to_vec();
                    let at = at % bytes.len();
                    bytes[at] ^= 64;
                    store.write_at(n * CHUNK as u64, &bytes).unwrap();
                }
                Op::Verify(n) => {
                    let expected = right(folder.path(), &content).contains(&n);
                    prop_assert_eq!(store.verify(n, &hash(&content, n)).unwrap(), expected);
                }
                Op::Mistaken(n) => prop_assert!(!store.verify(n, &CONTENT).unwrap()),
                Op::Reopen | Op::Rot(_) | Op::Cut(_) => {
                    drop(store);
                    let file = std::fs::File::options()
                        .read(true)
                        .write(true)
                        .open(folder.path().join("x.part"))
                        .unwrap();
                    let there = file.metadata().unwrap().len();
                    match op {
                        Op::Rot(at) if (at as u64) < there => {
                            let mut byte = [0];
                            file.read_exact_at(&mut byte, at as u64).unwrap();
                            file.write_all_at(&[byte[0] ^ 2], at as u64).unwrap();
                        }
                        Op::Cut(at) => file.set_len(there.min(at as u64)).unwrap(),
                        _ => {}
                    }
                    drop(file);
                    store = open();
                    let expected = &noted & &right(folder.path(), &content);
                    prop_assert_eq!(have(&store, &content), expected);
                }
            }
            let have = have(&store, &content);
            noted.extend(&have);
            prop_assert!(have.is_subset(&right(folder.path(), &content)));
            prop_assert!(have.iter().all(|it| store.hash(*it) == Some(hash(&content, *it))));
        }
        let missing = store.have().missing().next();
        if let Some(missing) = missing {
            match store.finish(&Finish::default()) {
                Err(StoreError::Missing { block, .. }) => prop_assert_eq!(block, missing),
                other => prop_assert!(false, "{:?}", other),
            }
            store = open();
        }
        complete(store, &content).unwrap();
        prop_assert!(std::fs::read(folder.path().join("x")).unwrap() == content);
        prop_assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

#[test]
fn a_store_killed_at_any_operation_has_only_correct_blocks_when_reopened() {
    let content = content(3 * CHUNK + 5);
    // There are five operations to open, two for each of four blocks, three to rename the file, and one to remove the
    // table, whose failure is harmless.
    for operations in 0..=17 {
        let folder = tempfile::tempdir().unwrap();
        let open = || BlockStore::open(config(folder.path(), content.len()));
        FAULT.set(Some((operations, ErrorKind::Other)));
        let result = open().and_then(|store| complete(store, &content));
        FAULT.set(None);
        assert_eq!(result.is_ok(), operations >= 16, "{operations}");
        if operations < 17 {
            let store = open().unwrap_or_else(|error| panic!("operation {operations}: {error}"));
            let have = have(&store, &content);
            assert!(have.is_subset(&right(folder.path(), &content)), "{operations}");
            assert_eq!(have.len() as u32, (operations.max(5) - 5).div_euclid(2).min(4));
            complete(store, &content).unwrap();
        }
        assert!(std::fs::read(folder.path().join("x")).unwrap() == content, "{operations}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "{operations}");
    }
}

/// The other file would have got the name, as one that is verified.
#[test]
fn another_file_in_the_place_of_the_incomplete_one_gets_no_name() {
    let folder = tempfile::tempdir().unwrap();
    let content = content(2 * CHUNK + 5);
    let part = folder.path().join("x.part");
    for replace in [false, true] {
        let config = BlockConfig { replace, ..config(folder.path(), content.len()) };
        let mut store = BlockStore::open(config).unwrap();
        for number in 0..3 {
            store.write_at(number * CHUNK as u64, block(&content, number)).unwrap();
            assert!(store.verify(number, &hash(&content, number)).unwrap());
        }
        std::fs::rename(&part, folder.path().join("moved")).unwrap();
        std::fs::write(&part, vec![7; content.len()]).unwrap();
        let error = store.finish(&Finish::default()).unwrap_err();
        assert!(error.to_string().contains("another program has replaced it"), "{error}");
        assert!(!folder.path().join("x").exists());
        std::fs::remove_file(&part).unwrap();
    }
}

#[test]
fn a_table_that_is_cut_off_or_of_something_else_costs_its_blocks_only() {
    let folder = tempfile::tempdir().unwrap();
    let content = content(2 * CHUNK + 5);
    let mut store = BlockStore::open(config(folder.path(), content.len())).unwrap();
    for number in [2, 0] {
        store.write_at(number * CHUNK as u64, block(&content, number)).unwrap();
        assert!(store.verify(number, &hash(&content, number)).unwrap());
    }
    drop(store);
    let (table, part) = (folder.path().join("x.blocks"), folder.path().join("x.part"));
    let (noted, bytes) = (std::fs::read(&table).unwrap(), std::fs::read(&part).unwrap());
    let mut seen = BTreeSet::new();
    let mut open = |noted: &[u8], changed: &dyn Fn(&mut BlockConfig)| {
        std::fs::write(&table, noted).unwrap();
        std::fs::write(&part, &bytes).unwrap();
        let mut config = config(folder.path(), content.len());
        changed(&mut config);
        let store = BlockStore::open(config).unwrap();
        seen.insert(have(&store, &content));
        store.have().len()
    };
    for len in 0..=noted.len() {
        open(&noted[..len], &|_| {});
    }
    for at in 0..table::HEADER {
        let mut noted = noted.clone();
        noted[at] ^= 1;
        assert_eq!(open(&noted, &|_| {}), 0, "{at}");
    }
    assert_eq!(open(&noted, &|config| config.content = [8; 32]), 0);
    assert_eq!(open(&noted, &|config| config.length = Some(2 * CHUNK as u64)), 0);
    assert_eq!(open(&noted, &|config| config.resume = false), 0);
    assert_eq!(open(&noted, &|_| {}), 2);
    assert_eq!(seen, [vec![], vec![0], vec![0, 2]].map(BTreeSet::from_iter).into());
}

#[test]
fn holes_are_verified_without_being_written() {
    let folder = tempfile::tempdir().unwrap();
    let mut image = vec![0; 5 * CHUNK + 700];
    image[2 * CHUNK..3 * CHUNK].copy_from_slice(&content(CHUNK));
    let mut store = BlockStore::open(config(folder.path(), image.len())).unwrap();
    for number in [5, 1, 0] {
        assert!(store.verify(number, &hash(&image, number)).unwrap());
    }
    assert!(!store.verify(2, &hash(&image, 2)).unwrap());
    store.write_at(2 * CHUNK as u64, block(&image, 2)).unwrap();
    drop(store);
    // Unverified blocks are written again.
    let store = BlockStore::open(config(folder.path(), image.len())).unwrap();
    assert_eq!(have(&store, &image), [0, 1, 5].into());
    complete(store, &image).unwrap();
    let path = folder.path().join("x");
    assert!(std::fs::read(&path).unwrap() == image);
}

#[test]
fn a_full_disk_is_an_error_that_names_the_missing_space() {
    let folder = tempfile::tempdir().unwrap();
    let content = content(3 * CHUNK);
    let mut store = BlockStore::open(config(folder.path(), content.len())).unwrap();
    store.write_at(CHUNK as u64, block(&content, 1)).unwrap();
    assert!(store.verify(1, &hash(&content, 1)).unwrap());
    FAULT.set(Some((0, ErrorKind::StorageFull)));
    let result = store.write_at(0, block(&content, 0));
    FAULT.set(Some((0, ErrorKind::FileTooLarge)));
    let limited = store.write_at(0, block(&content, 0));
    FAULT.set(None);
    match result {
        Err(StoreError::Full { path, needs, free }) => {
            assert_eq!((path, needs), (folder.path().join("x.part"), Some(2 * CHUNK as u64)));
            assert!(free.is_some());
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(limited, Err(StoreError::TooLarge(_))));
    // The store continues once there is room.
    complete(store, &content).unwrap();
    assert!(std::fs::read(folder.path().join("x")).unwrap() == content);
}

#[test]
fn a_block_cannot_be_two_things_and_a_file_cannot_be_written_twice() {
    let folder = tempfile::tempdir().unwrap();
    let content = content(2 * CHUNK);
    let open = || BlockStore::open(config(folder.path(), content.len()));
    let mut store = open().unwrap();
    assert!(matches!(open(), Err(StoreError::Busy(_))));
    store.write_at(0, block(&content, 0)).unwrap();
    store.commit(0, &hash(&content, 0)).unwrap();
    store.commit(0, &hash(&content, 0)).unwrap();
    assert!(matches!(store.commit(0, &CONTENT), Err(StoreError::Conflict { block: 0, .. })));
    // Bytes of a verified block change nothing.
    store.write_at(CHUNK as u64 - 9, &[0; 18]).unwrap();
    assert_eq!(store.read(0).unwrap(), Some(block(&content, 0)));
    assert_eq!(store.read(1).unwrap().map(|bytes| bytes.iter().all(|byte| *byte == 0)), Some(true));
    assert_eq!(store.read(2).unwrap(), None);
    drop(store);
    // A file that another process has put there is not replaced.
    std::fs::write(folder.path().join("x"), b"other").unwrap();
    assert!(matches!(open(), Err(StoreError::Exists(_))));
    let replace = BlockConfig { replace: true, ..config(folder.path(), content.len()) };
    complete(BlockStore::open(replace).unwrap(), &content).unwrap();
    assert!(std::fs::read(folder.path().join("x")).unwrap() == content);
}
