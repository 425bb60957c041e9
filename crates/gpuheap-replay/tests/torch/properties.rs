//! Tests that random programs cause no panics in models of allocators, and give consistent figures.

use gpuheap_replay::models::torch::{Settings, Torch};
use gpuheap_replay::models::{NAMES, build};
use gpuheap_replay::{Model, Request, Ticket};
use proptest::collection::vec;
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Call {
    Allocate { bytes: u64, stream: u64, pool: u32 },
    Free { which: usize, completed: bool },
    Complete { which: usize },
    EmptyCache,
}

fn bytes() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0_u64..3 << 20,
        4 => 1_u64 << 20..40 << 20,
        1 => Just(u64::MAX),
        1 => any::<u64>(),
    ]
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        8 => (bytes(), 0_u64..3, prop_oneof![8 => Just(0_u32), 1 => 1_u32..3])
            .prop_map(|(bytes, stream, pool)| Call::Allocate { bytes, stream, pool }),
        6 => (any::<usize>(), any::<bool>())
            .prop_map(|(which, completed)| Call::Free { which, completed }),
        2 => any::<usize>().prop_map(|which| Call::Complete { which }),
        1 => Just(Call::EmptyCache),
    ]
}

fn settings() -> impl Strategy<Value = Settings> {
    prop::sample::select(vec![
        "",
        "expandable_segments:True",
        "max_split_size_mb:20",
        "max_split_size_mb:21,expandable_segments:True",
        "roundup_power2_divisions:8",
        "garbage_collection_threshold:0.3,per_process_memory_fraction:0.5",
        "per_process_memory_fraction:0.3,expandable_segments:True,max_split_size_mb:24",
        "large_segment_size_mb:50",
    ])
    .prop_map(|text| text.parse().unwrap())
}

proptest! {
    #[test]
    fn torch_figures_stay_consistent(
        settings in settings(),
        memory in prop_oneof![4 => 1_u64 << 26..1 << 29, 1 => any::<u64>()],
        calls in vec(call(), 1..200),
    ) {
        let fraction = settings.memory_fraction().unwrap_or(1.0);
        let mut model = Torch::new(settings, memory);
        let mut tickets: Vec<(Ticket, u64)> = Vec::new();
        for call in calls {
            match call {
                Call::Allocate { bytes, stream, pool } => {
                    match model.allocate(Request { bytes, stream, pool }) {
                        Ok(ticket) => tickets.push((ticket, bytes)),
                        Err(refusal) => prop_assert!(refusal.needed >= bytes),
                    }
                }
                Call::Free { which, completed } if !tickets.is_empty() => {
                    let (ticket, _) = tickets[which % tickets.len()];
                    // A second free of a block has no effect.
                    model.free(ticket, 0);
                    if completed {
                        model.complete(ticket);
                    }
                }
                Call::Complete { which } if !tickets.is_empty() => {
                    model.complete(tickets[which % tickets.len()].0);
                }
                Call::EmptyCache => model.empty_cache(),
                _ => {}
            }
            let figures = model.figures();
            prop_assert!(figures.allocated <= figures.active, "{figures:?}");
            prop_assert!(figures.requested <= figures.allocated, "{figures:?}");
            prop_assert!(figures.active + figures.inactive_split <= figures.reserved, "{figures:?}");
            prop_assert!(figures.reserved <= memory, "{figures:?}");
            // PyTorch compares its limit with the size of the request, but then maps whole pieces
            // of 20 MiB, or 50 MiB with `large_segment_size_mb:50`. So PyTorch may reserve up to 50
            // MiB more than its limit.
            let limit = fraction * memory as f64 + (50 << 20) as f64;
            prop_assert!(figures.reserved as f64 <= limit, "{figures:?}");
            let taken: u64 = model.driver_events().iter().filter(|event| event.is_taken)
                .map(|event| event.bytes).sum();
            let given_back: u64 = model.driver_events().iter().filter(|event| !event.is_taken)
                .map(|event| event.bytes).sum();
            prop_assert_eq!(taken - given_back, figures.reserved);
        }
        for (ticket, _) in tickets {
            model.free(ticket, 0);
        }
        model.empty_cache();
        prop_assert_eq!(model.figures().active, 0);
    }

    #[test]
    fn model_figures_stay_consistent(
        which in prop::sample::select(vec![
            "torch", "rmm:pool:initial_pool_size:1MiB", "rmm:pool:maximum_pool_size:64MiB,initial_pool_size:0",
            "rmm:arena:arena_size:32MiB", "rmm:binning:min_size_exponent:8,max_size_exponent:12",
            "rmm:async", "cupy", "cupy:limit:50MiB", "cuda",
        ]),
        memory in prop_oneof![4 => 1_u64 << 26..1 << 29, 1 => (1_u64 << 26)..u64::MAX],
        calls in vec(call(), 1..150),
    ) {
        let mut model = build(which, memory).unwrap();
        let mut tickets: Vec<Ticket> = Vec::new();
        for call in calls {
            match call {
                Call::Allocate { bytes, stream, pool } => {
                    tickets.extend(model.allocate(Request { bytes, stream, pool }));
                }
                Call::Free { which, .. } if !tickets.is_empty() => {
                    let at = which % tickets.len();
                    model.free(tickets[at], (which % 3) as u64);
                    model.complete(tickets[at]);
                }
                _ => {}
            }
            let figures = model.figures();
            prop_assert!(figures.allocated <= figures.reserved, "{figures:?}");
            prop_assert!(figures.reserved <= memory, "{figures:?}");
            prop_assert!(figures.peak_reserved >= figures.reserved, "{figures:?}");
        }
        for ticket in tickets {
            model.free(ticket, 0);
            model.complete(ticket);
        }
        let figures = model.figures();
        prop_assert_eq!((figures.allocated, figures.requested), (0, 0));
    }

    #[test]
    fn model_text_error_is_one_line(
        name in prop::sample::select(NAMES.to_vec()),
        text in "[a-z_:,0-9.KMGiBT\\[\\] \u{0}-\u{ff}]{0,40}",
    ) {
        for text in [text.clone(), format!("{name}:{text}")] {
            if let Err(error) = build(&text, 1 << 30) {
                prop_assert!(!error.to_string().contains('\n'), "{}", error);
            }
        }
    }

    #[test]
    fn settings_text_error_is_one_line(text in "[a-z_:,\\[\\]>0-9.TrueFals \u{0}-\u{ff}]{0,60}") {
        if let Err(error) = text.parse::<Settings>() {
            prop_assert!(!error.to_string().contains('\n'), "{}", error);
        }
    }
}
