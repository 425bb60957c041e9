//! Compares the table of devices with the emulator's profiles of the same devices.

use gpuheap_emu::Profile;
use gpuheap_replay::cards;

#[test]
fn emulator_profiles_match_their_cards() {
    for name in Profile::NAMES {
        let profile = Profile::named(name).unwrap();
        let card = cards::find(name).unwrap();
        let usable = profile.memory_bytes - profile.context_bytes;
        let apart = usable.abs_diff(card.usable_bytes) as f64 / usable as f64;
        // Without a measurement, the profile and the card have separate estimates of usable memory.
        let most = if card.usable_is_measured { 0.0 } else { 0.015 };
        assert!(apart <= most, "{name}: {usable} and {card:?}");
        let (major, minor) = profile.compute_capability;
        assert_eq!((major as u32, minor as u32), card.capability, "{name}");
        assert_eq!(profile.multiprocessors as u32, card.sms, "{name}");
        assert_eq!((profile.vmm, profile.pools), (card.vmm, card.pools), "{name}");
    }
    let h200 = cards::find("H200").unwrap();
    assert!(h200.usable_is_measured);
    assert_eq!(h200.total_bytes, Profile::h200().memory_bytes);
}
