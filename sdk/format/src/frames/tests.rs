use super::*;
use proptest::{collection::vec, prelude::*};

/// Content that compresses by about half.
fn content(bytes: usize) -> Vec<u8> {
    let mut state = 1_u32;
    (0..bytes)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 28) as u8
        })
        .collect()
}

/// A payload as it is stored, with its table.
fn stored(content: &[u8]) -> (Vec<u8>, SeekTable) {
    let mut table = SeekTable::default();
    let mut stored = Vec::new();
    for part in content.chunks(FRAME_BYTES) {
        let frame = compress_frame(part, 1);
        table.frames.push((frame.len() as u32, part.len() as u32));
        stored.extend(frame);
    }
    stored.extend(table.encode());
    (stored, table)
}

#[test]
fn a_payload_comes_back_whole_and_in_ranges() {
    let content = content(2 * FRAME_BYTES + 1_234);
    let (stored, table) = stored(&content);
    assert_eq!(decompress(&stored, content.len()).unwrap(), content);
    let tail = &stored[stored.len() - SeekTable::max_encoded_len(content.len() as u64) as usize..];
    assert_eq!(SeekTable::decode_tail(tail).unwrap(), table);
    assert_eq!(SeekTable::decode_tail(&stored).unwrap(), table);
    assert_eq!(
        (table.stored_bytes() as usize + tail.len(), table.content_bytes() as usize),
        (stored.len(), content.len())
    );
    let frame = FRAME_BYTES as u64;
    for (offset, length) in [(0, 1), (0, frame), (frame - 1, 2), (frame, frame), (5, 2 * frame), (2 * frame, 1_234)] {
        let span = table.span(ByteRange { offset, length }).unwrap();
        let part = &stored[span.stored.offset as usize..span.stored.end().unwrap() as usize];
        let part = decompress(part, span.content as usize).unwrap();
        let range = offset as usize..(offset + length) as usize;
        assert_eq!(part[span.skip as usize..][..length as usize], content[range], "{length} from {offset}");
    }
}

#[test]
fn a_range_needs_only_its_frames() {
    let table = SeekTable { frames: vec![(10, FRAME_BYTES as u32), (20, FRAME_BYTES as u32), (30, 7)] };
    let frame = FRAME_BYTES as u64;
    let span = |offset, length| table.span(ByteRange { offset, length });
    let expected =
        |offset, length, skip, content| Some(FrameSpan { stored: ByteRange { offset, length }, skip, content });
    assert_eq!(span(0, frame), expected(0, 10, 0, frame));
    assert_eq!(span(frame + 3, 1), expected(10, 20, 3, frame));
    assert_eq!(span(2 * frame - 1, 2), expected(10, 50, frame - 1, frame + 7));
    assert_eq!(span(2 * frame + 7, 0), expected(0, 0, 0, 0));
    assert_eq!(span(2 * frame + 7, 1), None);
    assert_eq!(span(2 * frame + 8, 0), None);
    assert_eq!(span(u64::MAX, 1), None);
}

#[test]
fn small_payloads_have_no_table() {
    assert_eq!(SeekTable::max_encoded_len(0), 0);
    assert_eq!(SeekTable::max_encoded_len(FRAME_BYTES as u64), 0);
    assert_eq!(SeekTable::max_encoded_len(FRAME_BYTES as u64 + 1), 33);
    assert_eq!(decompress(&compress_frame(b"", 3), 0).unwrap(), b""[..]);
    assert_eq!(decompress(&compress_frame(b"abc", 3), 3).unwrap(), b"abc"[..]);
}

#[test]
fn another_size_is_refused_before_anything_is_allocated() {
    let frame = compress_frame(&[0; FRAME_BYTES], 1);
    for size in [0, FRAME_BYTES - 1, FRAME_BYTES + 1, usize::MAX] {
        let error = decompress(&frame, size).unwrap_err();
        assert!(error.why.contains("expected"), "{error}");
    }
    let bomb = zstd::bulk::compress(&vec![0; 64 << 20], 1).unwrap();
    let error = decompress(&bomb, 64 << 20).unwrap_err();
    assert!(error.why.contains("the limit is"), "{error}");
}

#[test]
fn every_truncation_is_refused() {
    let content = content(3_000);
    let frame = compress_frame(&content, 1);
    for length in 0..frame.len() {
        decompress(&frame[..length], content.len()).unwrap_err();
    }
    let table = SeekTable { frames: vec![(10, FRAME_BYTES as u32), (9, 1)] };
    let encoded = table.encode();
    for length in 0..encoded.len() {
        SeekTable::decode_tail(&encoded[..length]).unwrap_err();
        if length > 0 {
            SeekTable::decode_tail(&encoded[length..]).unwrap_err();
        }
    }
}

#[test]
fn tables_that_no_writer_makes_are_refused() {
    let full = FRAME_BYTES as u32;
    for frames in
        [vec![(10, full - 1), (10, 1)], vec![(10, full + 1)], vec![(10, 0)], vec![(0, full)], vec![(2 * full, full)]]
    {
        let error = SeekTable::decode_tail(&SeekTable { frames }.encode()).unwrap_err();
        assert!(error.why.contains("frame 1 of"), "{error}");
    }
    let mut checksummed = SeekTable { frames: vec![(10, full), (9, 1)] }.encode();
    let descriptor = checksummed.len() - 5;
    checksummed[descriptor] = 0x80;
    SeekTable::decode_tail(&checksummed).unwrap_err();
}

proptest! {
    #[test]
    fn tables_round_trip(stored in vec(1_u32..FRAME_BYTES as u32, 1..20), last in 1..=FRAME_BYTES as u32) {
        let mut frames: Vec<_> = stored.into_iter().map(|stored| (stored, FRAME_BYTES as u32)).collect();
        frames.last_mut().unwrap().1 = last;
        let table = SeekTable { frames };
        prop_assert_eq!(SeekTable::decode_tail(&table.encode()).unwrap(), table);
    }

    #[test]
    fn hostile_bytes_do_not_panic(mut bytes in vec(any::<u8>(), 0..100), size in 0_usize..100) {
        let _ = SeekTable::decode_tail(&bytes);
        let _ = decompress(&bytes, size);
        bytes.splice(0..0, 0xFD2F_B528_u32.to_le_bytes());
        let _ = decompress(&bytes, size);
        bytes.extend([0, 0, 0, 0, 0]);
        bytes.extend(SEEKABLE_MAGIC.to_le_bytes());
        let _ = SeekTable::decode_tail(&bytes);
    }

    #[test]
    fn a_flipped_bit_never_gives_another_length(bit in 0_usize..8 * 200) {
        let content = content(3_000);
        let mut frame = compress_frame(&content, 1);
        frame[bit / 8] ^= 1 << (bit % 8);
        if let Ok(other) = decompress(&frame, content.len()) {
            prop_assert_eq!(other.len(), content.len());
        }
    }
}
