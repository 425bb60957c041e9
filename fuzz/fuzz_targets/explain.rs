//! Fuzzes logs that a user passes to `gpuheap explain`.

#![no_main]

use gpuheap_doctor::explain_error;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    for on_wsl2 in [None, Some(false), Some(true)] {
        if let Some(found) = explain_error(&text, on_wsl2) {
            assert!(!found.render(80).is_empty());
        }
    }
});
