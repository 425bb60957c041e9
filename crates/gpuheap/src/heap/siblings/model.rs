//! A model of requests that reach into each other's heaps, run through in every order.
//!
//! Thread `t` asks heap `t` for memory, in units of which a policy takes one at a time, and tries
//! as the reclaim steps do: an attempt, what other heaps cache, an attempt, and attempts in turn
//! while other heaps give something back.
//!
//! The model is an implementation of its own, by the same rules, and not the code of the library.
//! It has one lock for each heap. It has no lock of visits, no end of a turn by time, no pending
//! frees and no captures. Every order of its steps is tried, which says nothing of these.

use std::collections::HashSet;

/// As [`MOST_ROUNDS`](super::MOST_ROUNDS), and more than the threads here can cause.
const ROUNDS: u8 = 6;

/// How memory is reclaimed; both false in variants that have to be found wrong.
#[derive(Clone, Copy)]
struct Rules {
    takes_turns: bool,
    unlocks_before_reaching: bool,
}

const RULES: Rules = Rules { takes_turns: true, unlocks_before_reaching: true };

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum At {
    Lock,
    Attempt,
    Unlock { served: bool },
    ReachLock(usize),
    ReachGive(usize),
    ReachUnlock(usize),
    Turn,
    End { served: bool },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    First,
    Reached,
    Alone,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Thread {
    at: At,
    phase: Phase,
    round: u8,
    /// Units that other heaps gave back since the last attempt.
    regained: u8,
    /// Units taken for the request so far.
    gathered: u8,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    free: u8,
    cached: Vec<u8>,
    /// The thread that has the lock of each heap.
    locked: Vec<Option<usize>>,
    turn: Option<usize>,
    threads: Vec<Thread>,
}

/// How a run ended: for each thread whether it was served; `None` if none could go on.
type Outcome = Option<Vec<bool>>;

impl World {
    fn new(free: u8, cached: &[u8]) -> World {
        let thread =
            Thread { at: At::Lock, phase: Phase::First, round: 0, regained: 0, gathered: 0 };
        World {
            free,
            cached: cached.to_vec(),
            locked: vec![None; cached.len()],
            turn: None,
            threads: vec![thread; cached.len()],
        }
    }

    /// The outcomes of all orders in which the threads can go on.
    fn outcomes(self, wanted: &[u8], rules: Rules) -> HashSet<Outcome> {
        let (mut seen, mut outcomes) = (HashSet::new(), HashSet::new());
        let mut open = vec![self];
        while let Some(world) = open.pop() {
            if !seen.insert(world.clone()) {
                continue;
            }
            let steps = (0..wanted.len()).filter_map(|thread| world.step(thread, wanted, rules));
            let before = open.len();
            open.extend(steps);
            if open.len() == before {
                let served = world.threads.iter().map(|thread| match thread.at {
                    At::End { served } => Some(served),
                    _ => None,
                });
                outcomes.insert(served.collect());
            }
        }
        outcomes
    }

    /// The world after the next step of a thread; `None` if it waits or has ended.
    fn step(&self, me: usize, wanted: &[u8], rules: Rules) -> Option<World> {
        let mut world = self.clone();
        let World { free, cached, locked, turn, threads } = &mut world;
        let thread = &mut threads[me];
        let mut lock = |heap: usize| locked[heap].is_none().then(|| locked[heap] = Some(me));
        thread.at = match thread.at {
            At::End { .. } => return None,
            At::Lock => {
                lock(me)?;
                if thread.phase == Phase::Alone {
                    *free += std::mem::take(&mut cached[me]);
                }
                At::Attempt
            }
            At::Attempt if thread.gathered == wanted[me] => At::Unlock { served: true },
            At::Attempt if cached[me] > 0 || *free > 0 => {
                *(if cached[me] > 0 { &mut cached[me] } else { free }) -= 1;
                thread.gathered += 1;
                At::Attempt
            }
            At::Attempt => {
                cached[me] += std::mem::take(&mut thread.gathered);
                At::Unlock { served: false }
            }
            At::Unlock { served: true } => {
                locked[me] = None;
                World::end(me, turn, true)
            }
            At::Unlock { served: false } => {
                if rules.unlocks_before_reaching {
                    locked[me] = None;
                }
                thread.regained = 0;
                match thread.phase {
                    Phase::Reached => At::Turn,
                    _ => At::ReachLock(usize::from(me == 0)),
                }
            }
            At::Turn => {
                if rules.takes_turns {
                    match turn {
                        Some(_) => return None,
                        None => *turn = Some(me),
                    }
                }
                thread.phase = Phase::Alone;
                At::Lock
            }
            At::ReachLock(other) => {
                lock(other)?;
                At::ReachGive(other)
            }
            At::ReachGive(other) => {
                thread.regained += cached[other];
                *free += std::mem::take(&mut cached[other]);
                At::ReachUnlock(other)
            }
            At::ReachUnlock(other) => {
                locked[other] = None;
                let next = (other + 1..wanted.len()).find(|next| *next != me);
                match (next, thread.phase) {
                    (Some(next), _) => At::ReachLock(next),
                    (None, Phase::First) => {
                        thread.phase = Phase::Reached;
                        At::Lock
                    }
                    (None, _) if thread.regained > 0 && thread.round < ROUNDS => {
                        thread.round += 1;
                        At::Lock
                    }
                    (None, _) => World::end(me, turn, false),
                }
            }
        };
        Some(world)
    }

    fn end(me: usize, turn: &mut Option<usize>, served: bool) -> At {
        if *turn == Some(me) {
            *turn = None;
        }
        At::End { served }
    }
}

#[test]
fn requests_that_fit_together_are_all_served_in_every_order() {
    for (free, cached, wanted) in [
        (0, &[2, 2][..], &[1, 3][..]),
        (0, &[3, 3], &[3, 3]),
        (1, &[0, 3], &[2, 2]),
        (0, &[1, 2, 1], &[1, 1, 2]),
        (0, &[0, 0, 4], &[2, 2, 0]),
    ] {
        let outcomes = World::new(free, cached).outcomes(wanted, RULES);
        assert_eq!(outcomes, HashSet::from([Some(vec![true; wanted.len()])]), "{wanted:?}");
    }
}

#[test]
fn of_two_requests_one_of_which_fits_one_is_served_in_every_order() {
    for cached in [[2, 2], [0, 4], [3, 0]] {
        let world = World::new(4 - cached.iter().sum::<u8>(), &cached);
        let outcomes = world.outcomes(&[3, 3], RULES);
        let one = [Some(vec![true, false]), Some(vec![false, true])];
        assert!(outcomes.iter().all(|outcome| one.contains(outcome)), "{cached:?}: {outcomes:?}");
    }
}

/// The model finds what the rules are there for.
#[test]
fn without_its_rules_reclaiming_is_found_wrong() {
    let without_turns = Rules { takes_turns: false, ..RULES };
    let outcomes = World::new(0, &[2, 2]).outcomes(&[3, 3], without_turns);
    assert!(outcomes.contains(&Some(vec![false, false])), "{outcomes:?}");
    let locked = Rules { unlocks_before_reaching: false, ..RULES };
    let outcomes = World::new(0, &[2, 2]).outcomes(&[3, 3], locked);
    assert!(outcomes.contains(&None), "{outcomes:?}");
}
