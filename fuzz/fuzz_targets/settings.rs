//! Fuzzes the parsers of options: pools and their settings, sizes, and a dry run's batch range.

#![no_main]

use gpuheap::{PoolKind, Size};
use gpuheap_dry_run::FindBatch;
use gpuheap_replay::models::torch::Settings;
use gpuheap_replay::replay::Pool;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match Pool::parse(text) {
        Ok(pool) => assert_eq!(Pool::parse(&pool.to_string()), Ok(pool), "{text}"),
        Err(error) => assert!(!error.advice().is_empty(), "{text}"),
    }
    if let Ok(settings) = text.parse::<Settings>() {
        let again: Settings = settings.to_string().parse().expect("the settings' own text");
        assert_eq!(again, settings, "{text}");
    }
    if let Ok(kind) = PoolKind::parse(text) {
        assert_eq!(PoolKind::parse(kind.name()), Ok(kind));
    }
    if let Ok(Size::Bytes(bytes)) = Size::parse(text) {
        assert_eq!(Size::parse(&bytes.to_string()), Ok(Size::Bytes(bytes)), "{text}");
    }
    if let Ok(FindBatch { least, most, .. }) = FindBatch::parse(text) {
        assert!(least <= most, "{text}");
    }
});
