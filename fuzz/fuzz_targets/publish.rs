//! Questions and answers of programs that publish.

#![no_main]

use gpuheap_publish::{Answer, MOST_ENTRIES, parse_answer, parse_question};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Err(refusal) = parse_question(data) {
        assert!(!refusal.text.is_empty());
    }
    let Ok(answer) = parse_answer(data) else { return };
    let entries = match &answer {
        Answer::Status(status) => status.heaps.len(),
        Answer::Leaks(leaks) => leaks.sites.len(),
        Answer::Held(held) => held.len(),
        Answer::GivenBack(_) | Answer::Refused(_) => 0,
    };
    assert!(entries <= MOST_ENTRIES);
});
