//! Damage is found, named, and never written.

use std::fs;
use std::sync::OnceLock;

use proptest::prelude::*;
use rackweave_image::{Image, ImageError, Manifest, Packing, Progress, SecretKey, pack};

use crate::common::{Disk, packing};

fn signed() -> &'static [u8] {
    static IMAGE: OnceLock<Vec<u8>> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let disk = Disk::new();
        let packing = Packing { key: Some(SecretKey::from_seed(&[1; 32])), ..packing() };
        pack(&disk.disk, &disk.image, &packing, &Progress::default()).unwrap();
        fs::read(&disk.image).unwrap()
    })
}

/// Opens and verifies these bytes as an image.
fn verify(bytes: &[u8]) -> Result<(), ImageError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    fs::write(&path, bytes).unwrap();
    let image = Image::open(&path, &Progress::default())?;
    image.verify(&Progress::default()).map(drop)
}

#[test]
fn each_kind_of_damage_has_a_sentence() {
    let image = signed();
    verify(image).unwrap();
    let changed = |at: usize| {
        let mut bytes = image.to_vec();
        bytes[at] ^= 1;
        verify(&bytes).unwrap_err().to_string()
    };
    let end = image.len();
    assert!(changed(0).contains("is not an image: "));
    assert!(changed(8).contains("version 0 of the image format"));
    assert!(changed(64).contains("header or index is damaged"));
    // The first 64 KiB are noise and stored as they are, from byte 512.
    assert!(changed(1000).contains("chunk 0 of "), "{}", changed(1000));
    assert!(changed(512 + 65_536).contains("chunk 1 of "));
    assert!(changed(1000).ends_with("it is damaged: its bytes do not have the hash in the index"));
    assert!(changed(end - 145).contains("header or index is damaged"));
    assert!(changed(end - 144).contains("header or index is damaged"));
    assert!(changed(end - 100).contains("signature is wrong"));
    assert!(changed(end - 9).contains("signature is wrong"));
    assert!(changed(end - 1).contains("its last bytes are wrong"));
    let short = verify(&image[..end - 1]).unwrap_err().to_string();
    assert!(short.contains("truncated or has been appended to"), "{short}");
    let long = verify(&[image, &[0]].concat()).unwrap_err().to_string();
    assert!(long.contains("truncated or has been appended to"), "{long}");
    // The first of several damaged chunks is named.
    let mut bytes = image.to_vec();
    (1000..110_000).step_by(1000).for_each(|at| bytes[at] ^= 1);
    assert!(verify(&bytes).unwrap_err().to_string().contains("chunk 0 of "));
}

#[test]
fn an_image_that_is_cut_off_after_it_was_opened_is_too_short() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    fs::write(&path, signed()).unwrap();
    let image = Image::open(&path, &Progress::default()).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1000).unwrap();
    let error = image.read(0, &mut Vec::new()).unwrap_err().to_string();
    assert_eq!(error, format!("cannot read {}: the file is too short", path.display()));
}

#[test]
fn a_signature_cannot_be_removed_or_replaced_unnoticed() {
    let image = signed();
    let manifest = {
        let disk = Disk::new();
        fs::write(&disk.image, image).unwrap();
        Image::open(&disk.image, &Progress::default()).unwrap().manifest().clone()
    };
    let encoded = manifest.encode();
    let mut stripped = encoded.clone();
    let end = stripped.len();
    stripped[end - 112..end - 8].fill(0);
    let stripped = Manifest::decode(&stripped).unwrap();
    let key = SecretKey::from_seed(&[1; 32]).public();
    assert_eq!(stripped.require_signer(&key).unwrap_err().to_string(), "it is not signed");
    let mut marked = encoded;
    marked[end - 112..end - 104].fill(0);
    let error = Manifest::decode(&marked).unwrap_err();
    assert_eq!(error.to_string(), "its signature is not marked as one");
}

proptest! {
    #![proptest_config(rackweave_testing::cases(400))]

    #[test]
    fn any_flipped_bit_is_detected(at in 0..signed().len(), bit in 0..8_u8) {
        let mut bytes = signed().to_vec();
        bytes[at] ^= 1 << bit;
        prop_assert!(verify(&bytes).is_err());
    }

    #[test]
    fn any_truncation_is_detected(len in 0..signed().len()) {
        prop_assert!(verify(&signed()[..len]).is_err());
    }
}
