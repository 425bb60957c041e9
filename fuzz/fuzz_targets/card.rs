//! Fuzzes the search for a card (a GPU model) by the name that a user types.

#![no_main]

use gpuheap_replay::cards;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match cards::find(text) {
        Ok(card) => assert_eq!(cards::find(card.name), Ok(card)),
        Err(error) => {
            assert!(!error.candidates().is_empty());
            assert!(!error.to_string().contains('\n'), "{error}");
        }
    }
});
