//! Fuzzes the parser of questions to a program that publishes its memory, and the parser of the
//! program's answers.

#![no_main]

use gpuheap_publish::{Answer, MOST_ENTRIES, parse_answer, parse_question};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Err(refusal) = parse_question(data) {
        assert!(!refusal.text.is_empty());
    }
    let Ok(answer) = parse_answer(data) else { return };
    let is_safe = |text: &String| !text.contains(char::is_control);
    let (entries, texts_are_safe) = match &answer {
        Answer::Status(status) => (status.heaps.len(), is_safe(&status.program)),
        Answer::Leaks(leaks) => {
            (leaks.sites.len(), leaks.sites.iter().all(|site| is_safe(&site.line)))
        }
        Answer::Held(held) => (held.len(), held.iter().all(|one| one.holders.iter().all(is_safe))),
        Answer::Scopes(scopes) => (scopes.len(), scopes.iter().all(|scope| is_safe(&scope.name))),
        Answer::Libraries(all) => (all.len(), all.iter().all(|one| is_safe(&one.name))),
        Answer::Recordings(all) => (all.len(), all.iter().all(|one| is_safe(&one.path))),
        Answer::GivenBack(_) => (0, true),
        Answer::Refused(refusal) => (0, is_safe(&refusal.text)),
    };
    assert!(entries <= MOST_ENTRIES && texts_are_safe);
});
