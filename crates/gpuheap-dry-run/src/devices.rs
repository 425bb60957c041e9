//! Judges each device of a run.

use std::collections::BTreeMap;

use crate::program::Run;
use crate::verdict::{DeviceResult, DeviceVerdict, Outcome, ProcessResult, Reason, User};

/// Figures of the processes on one device.
type Figures<'r> = Vec<(&'r ProcessResult, &'r DeviceResult)>;

/// Returns a verdict for each device that a process used, ordered by the device's number.
pub(crate) fn judge(
    run: &Run,
    processes: &[ProcessResult],
    outcome: Outcome,
) -> Vec<DeviceVerdict> {
    let limit = run.device.total_bytes - run.device.margin_bytes;
    let verdict = |(number, figures): (u32, Figures<'_>)| DeviceVerdict {
        number,
        outcome: match outcome {
            Outcome::DoesNotFit if figures.iter().any(ran_out_on) => Outcome::DoesNotFit,
            Outcome::DoesNotFit | Outcome::Oversubscribed if is_oversubscribed(&figures, limit) => {
                outcome
            }
            Outcome::DoesNotFit => Outcome::NoVerdict(Reason::OtherDevice),
            Outcome::Oversubscribed => Outcome::Fits,
            outcome => outcome,
        },
        peak: peak(&figures),
        limit,
        with_room: None,
        users: figures
            .iter()
            .map(|(process, _)| User { pid: process.pid, rank: process.rank.clone() })
            .collect(),
    };
    by_number(processes).into_iter().map(verdict).collect()
}

/// Adds the peaks of a second run to the verdicts. In the second run, all devices had memory to
/// spare. If a device has no verdict, because memory ran out on another device first, judges the
/// device by the second run.
pub(crate) fn compare(verdicts: &mut [DeviceVerdict], processes: &[ProcessResult]) {
    let figures = by_number(processes);
    for verdict in verdicts {
        let Some(figures) = figures.get(&verdict.number) else { continue };
        verdict.with_room = peak(figures);
        if verdict.outcome != Outcome::NoVerdict(Reason::OtherDevice) {
            continue;
        }
        verdict.outcome = match (verdict.with_room, least(figures)) {
            (Some(peak), _) if peak <= verdict.limit => Outcome::Fits,
            (_, Some(least)) if least > verdict.limit => Outcome::DoesNotFit,
            // The peak exceeds the limit. But with less memory, the allocator may reserve less, so
            // the program may fit: keeps `NoVerdict`.
            _ => verdict.outcome,
        };
    }
}

fn by_number(processes: &[ProcessResult]) -> BTreeMap<u32, Figures<'_>> {
    let mut found = BTreeMap::<u32, Figures<'_>>::new();
    for process in processes {
        for device in &process.devices {
            found.entry(device.number).or_default().push((process, device));
        }
    }
    found
}

/// Returns the peak of a device: the highest figure of any process. The driver counts the memory of
/// all processes in each figure.
fn peak(figures: &Figures<'_>) -> Option<u64> {
    figures.iter().filter_map(|(_, device)| device.in_use).max()
}

/// Returns the least memory that the processes take, as the sum of their allocated bytes and of
/// memory outside PyTorch's allocator.
fn least(figures: &Figures<'_>) -> Option<u64> {
    let unused = |(_, device): &(&ProcessResult, &DeviceResult)| {
        device.reserved.unwrap_or(0).saturating_sub(device.allocated.unwrap_or(0))
    };
    let unused: u64 = figures.iter().map(unused).sum();
    Some(peak(figures)?.saturating_sub(unused))
}

/// Returns whether memory ran out for the process on the device. If the process has failed requests
/// without a reported device, returns `true` for each of its devices.
fn ran_out_on((process, device): &(&ProcessResult, &DeviceResult)) -> bool {
    let is_here = |ordinal: u32| ordinal == device.device;
    let decisive = || process.refused.iter().filter(|refusal| refusal.is_decisive);
    let is_unknown = process.failed > 0 && process.failures.is_empty() && decisive().count() == 0;
    is_unknown
        || process.failures.iter().any(|failure| is_here(failure.device))
        || decisive().any(|refusal| is_here(refusal.device))
}

fn is_oversubscribed(figures: &Figures<'_>, limit: u64) -> bool {
    figures.iter().any(|(_, device)| device.managed > Some(0) && device.demand > Some(limit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Failure;

    /// Returns a process. Each device is a tuple: ordinal in the process, index in the machine,
    /// allocated bytes, bytes in use.
    fn process(rank: &str, devices: &[(u32, u32, u64, u64)], failed_on: &[u32]) -> ProcessResult {
        let device = |&(device, number, allocated, in_use): &(u32, u32, u64, u64)| DeviceResult {
            device,
            number,
            allocated: Some(allocated),
            reserved: Some(in_use - 1),
            in_use: Some(in_use),
            ..DeviceResult::default()
        };
        let failure = |&device: &u32| Failure { device, ..Failure::default() };
        ProcessResult {
            pid: 7,
            rank: Some(rank.to_owned()),
            torch: None,
            steps: 0,
            devices: devices.iter().map(device).collect(),
            failures: failed_on.iter().map(failure).collect(),
            refused: Vec::new(),
            failed: failed_on.len() as u64,
        }
    }

    fn open(number: u32) -> DeviceVerdict {
        DeviceVerdict {
            number,
            outcome: Outcome::NoVerdict(Reason::OtherDevice),
            peak: Some(1),
            limit: 100,
            with_room: None,
            users: Vec::new(),
        }
    }

    #[test]
    fn failure_counts_for_its_device() {
        // The second process sees device 1 of the machine as its device 0.
        let processes = [
            process("0", &[(0, 0, 5, 9)], &[]),
            process("1", &[(0, 1, 5, 8)], &[0]),
            process("2", &[(0, 0, 5, 7)], &[]),
        ];
        let found = by_number(&processes);
        let ran_out: Vec<bool> = found.values().map(|one| one.iter().any(ran_out_on)).collect();
        assert_eq!(ran_out, [false, true]);
        assert_eq!((peak(&found[&0]), found[&0].len()), (Some(9), 2));
        assert_eq!(least(&found[&0]), Some(9 - 3 - 1));
    }

    #[test]
    fn open_device_is_judged_with_room() {
        let processes = [process("0", &[(0, 0, 5, 100), (1, 1, 200, 300), (2, 2, 50, 101)], &[])];
        let mut verdicts = [0, 1, 2, 3].map(open);
        compare(&mut verdicts, &processes);
        let outcomes = verdicts.each_ref().map(|verdict| verdict.outcome);
        let unknown = Outcome::NoVerdict(Reason::OtherDevice);
        assert_eq!(outcomes, [Outcome::Fits, Outcome::DoesNotFit, unknown, unknown]);
        assert_eq!(verdicts.map(|one| one.with_room), [Some(100), Some(300), Some(101), None]);
    }
}
