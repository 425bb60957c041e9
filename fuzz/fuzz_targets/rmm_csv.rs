//! Fuzzes the reader of RMM's logs. Reads each input as given, with a valid header before it, and
//! with the header and compressed. Writes a valid log again, and reads the written log.

#![no_main]

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use gpuheap_trace::{ReadOptions, Trace, read_bytes, write_rmm_csv};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = read_bytes("fuzz", data, &ReadOptions::default());
    let with_header = [b"Thread,Time,Action,Pointer,Size,Stream\n", data].concat();
    let plain = read_bytes("fuzz", &with_header, &ReadOptions::default());
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(&with_header).expect("a vector takes all");
    let packed = encoder.finish().expect("a vector takes all");
    let packed = read_bytes("fuzz", &packed, &ReadOptions::default());
    match (plain, packed) {
        (Ok(plain), Ok(packed)) => {
            assert_eq!(plain[0].events(), packed[0].events());
            round_trip(&plain[0]);
        }
        (Err(plain), Err(packed)) => assert_eq!(plain.to_string(), packed.to_string()),
        (plain, packed) => panic!("plain: {plain:?}, packed: {packed:?}"),
    }
});

fn round_trip(trace: &Trace) {
    if trace.events().is_empty() {
        return;
    }
    let mut text = Vec::new();
    write_rmm_csv(trace, &mut text).expect("a vector takes all");
    let again = read_bytes("again", &text, &ReadOptions::default()).expect("our own log");
    let ops = |trace: &Trace| trace.events().iter().map(|event| event.op).collect::<Vec<_>>();
    assert_eq!(ops(&again[0]), ops(trace));
    assert_eq!(again[0].summary().peak_live_bytes, trace.summary().peak_live_bytes);
}
