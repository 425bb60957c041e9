//! Renders a verdict as text for a terminal of 80 columns.

use gpuheap_dry_run::{
    Batch, Benchmark, BenchmarkRun, CardResult, Counts, DeviceResult, DeviceVerdict, Ended, Found,
    Held, LineRange, Outcome, Peak, ProcessResult, RangeEnd, Read, Reason, Refusal, Remedy,
    ResultRange, SizeRead, Then, Trial, Unknown, User, Verdict,
};
use gpuheap_replay::text::{hanging, paragraph};
use gpuheap_text::{Amount, count, grouped, line};

/// Maximum number of holders shown.
const HOLDERS: usize = 3;
/// Maximum number of modules shown.
const MODULES: usize = 5;
/// Maximum number of processes shown for one card.
const ROWS: usize = 8;
/// Library that contains PyTorch's allocator.
const PYTORCH: &str = "libc10_cuda.so";
/// Maximum number of refusals shown, if the program went on after them.
const REFUSALS: usize = 3;
/// Maximum number of lines shown about libraries.
const LIBRARIES: usize = 4;

/// Maximum number of source lines shown that compute a size from a result read from the GPU.
const SIZES: usize = 6;

/// Renders a verdict: the outcome, then the figures, the remedies and the unknown figures.
pub(super) fn render(verdict: &Verdict) -> String {
    let mut text = String::from("\n");
    hanging(&mut text, "gpuheap dry-run: ", "  ", &verdict.program);
    paragraph(&mut text, &sentence(verdict));
    text.push('\n');
    table(&mut text, verdict);
    failed(&mut text, verdict);
    if let Some(peak) = &verdict.peak {
        at_peak(&mut text, peak);
    }
    needs(&mut text, verdict);
    remedies(&mut text, verdict);
    trials(&mut text, verdict);
    if let Some(benchmark) = &verdict.benchmark {
        hanging(&mut text, "cuDNN's benchmark mode: ", "  ", &benchmark_words(benchmark));
    }
    unknown(&mut text, &verdict.unknown);
    for note in &verdict.notes {
        hanging(&mut text, "Note: ", "  ", note);
    }
    if let Some(next) = &verdict.next {
        line(&mut text, format_args!("Next:\n  {next}"));
    }
    text
}

/// Returns sentences that describe the outcome on all cards.
pub(super) fn sentence(verdict: &Verdict) -> String {
    let mut parts: Vec<String> = verdict.batch.iter().map(batch_sentence).collect();
    let mut outcomes: Vec<Outcome> = verdict.cards.iter().map(|card| card.outcome).collect();
    outcomes.sort();
    outcomes.dedup();
    for outcome in outcomes {
        let of = verdict.cards.iter().filter(|card| card.outcome == outcome);
        let names: Vec<String> = of.map(|card| on_all(verdict.devices, &card.card)).collect();
        let names = names.join(", ");
        // If `--find-batch` searched, `batch_sentence` already names the values that fit.
        let is_said = verdict.batch.is_some();
        match outcome {
            Outcome::NoVerdict(reason) => parts.push(no_verdict(reason, &names)),
            _ if is_said => {}
            Outcome::Fits => parts.push(format!("It fits on {names}{}.", so_far(verdict))),
            Outcome::FitsAsFarAsKnown => {
                parts.push(format!("It fits on {names} as far as is known{}.", so_far(verdict)));
            }
            Outcome::Oversubscribed => parts.push(format!(
                "It is oversubscribed on {names}: with its managed memory it has more than the \
                 device. It runs on Linux, and slowly: pages move between host and device. Under \
                 WSL2 and on Windows it fails. --allow-oversubscription counts it as a fit."
            )),
            Outcome::DoesNotFit => {
                let devices = verdict.cards.iter().filter(|card| card.outcome == outcome);
                let devices: String = devices.map(|card| out_of_memory(verdict, card)).collect();
                parts.push(format!("It does not fit on {names}.{devices}"));
            }
        }
    }
    if !verdict.unknown.sizes.is_empty() {
        let bounds = match verdict.unknown.sizes.iter().all(|read| read.is_bound) {
            true => ", as large as they can be",
            false => "",
        };
        parts.push(format!(
            "Sizes depend on results, which a dry run chooses{bounds}: {}.",
            sizes_at(&verdict.unknown.sizes)
        ));
    }
    parts.extend(verdict.range.as_ref().map(range));
    if verdict.is_interrupted {
        parts.push("It was interrupted: what is left out was not run.".to_owned());
    }
    parts.join(" ")
}

/// Returns a sentence that names the devices that ran out of memory; an empty text if the program
/// has one device.
fn out_of_memory(verdict: &Verdict, card: &CardResult) -> String {
    let full = card.devices.iter().filter(|device| device.outcome == Outcome::DoesNotFit);
    let named = |device: &DeviceVerdict| {
        let needs = match device.with_room {
            Some(bytes) if bytes > device.limit => format!(", {} with room", Amount(bytes)),
            _ => String::new(),
        };
        format!("device {} ({}{needs})", device.number, users(&device.users))
    };
    let full: Vec<String> = full.map(named).collect();
    match verdict.devices {
        1 => String::new(),
        _ if full.is_empty() => String::new(),
        _ => format!(" Memory runs out on {} of {}.", full.join(", "), card.card),
    }
}

/// Returns a list that names each process by its rank, or by its pid if it has no rank.
pub(super) fn users(users: &[User]) -> String {
    let one = |user: &User| match &user.rank {
        Some(rank) => format!("rank {rank}"),
        None => format!("pid {}", user.pid),
    };
    users.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn on_all(devices: u32, card: &str) -> String {
    match devices {
        1 => card.to_owned(),
        devices => format!("{devices} x {card}"),
    }
}

/// Returns " so far" if the time limit ended a program; otherwise an empty text.
fn so_far(verdict: &Verdict) -> &'static str {
    match verdict.cards.iter().any(|card| card.ended == Some(Ended::TimeLimit)) {
        true => " so far",
        false => "",
    }
}

fn no_verdict(reason: Reason, cards: &str) -> String {
    match reason {
        Reason::NoStep => format!(
            "No verdict on {cards}: the program was ended at the time limit, before its first \
             optimiser step. Give it more time with --time-limit."
        ),
        Reason::Interrupted => {
            format!("No verdict on {cards}: the run was interrupted. Figures are those so far.")
        }
        Reason::NoGpuUsed => format!("No verdict on {cards}: the program used no GPU."),
        Reason::OtherDevice => {
            format!("No verdict on {cards}: memory ran out on another device first.")
        }
        Reason::StaticRuntime => format!(
            "No verdict on {cards}: the program's CUDA runtime is linked statically, so a dry run \
             does not see its memory."
        ),
        Reason::Failed => {
            format!("No verdict on {cards}: the program failed, for another reason than memory.")
        }
        Reason::Hang => {
            format!("No verdict on {cards}: the program waits for a result that never comes.")
        }
        Reason::AbsurdRequest => format!(
            "No verdict on {cards}: a result may have decided the size of a request that is larger \
             than all others together. Set the result with --read."
        ),
    }
}

fn sizes_at(reads: &[SizeRead]) -> String {
    let one = |read: &SizeRead| {
        let value = read.value.as_ref().map(|value| format!("{value}, ")).unwrap_or_default();
        let times = count(read.times, "time");
        format!("{} by {} ({value}{times})", short(&read.line), read.operator)
    };
    let mut parts: Vec<String> = reads.iter().take(SIZES).map(one).collect();
    if reads.len() > SIZES {
        parts.push(format!("and {} more, in --json", grouped((reads.len() - SIZES) as u64)));
    }
    parts.join("; ")
}

fn read_at(reads: &[Read]) -> String {
    let one = |read: &Read| {
        let value = read.value.as_ref().map(|value| format!("{value}, ")).unwrap_or_default();
        format!("{} ({value}{})", short(&read.line), count(read.times, "time"))
    };
    reads.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// Returns sentences that compare two peaks. One is the peak if operators such as `nonzero` find
/// the smallest possible counts, the other if they find the largest.
fn range(range: &ResultRange) -> String {
    let ResultRange { largest, smallest, lines, lines_left } = range;
    let peaks = |end: &RangeEnd| {
        let amount = |bytes: Option<u64>| Amount(bytes.unwrap_or(0)).to_string();
        format!("{} allocated and {} reserved", amount(end.allocated), amount(end.reserved))
    };
    let counts = match smallest.counts {
        Counts::Largest => "the largest counts".to_owned(),
        Counts::AtMost(most) => format!("counts of {most}"),
    };
    let mut words = match smallest.outcome {
        Outcome::NoVerdict(_) => format!("With {counts}, the program does not complete."),
        _ => format!("With {counts}, it takes {}, and not {}.", peaks(smallest), peaks(largest)),
    };
    if lines.len() > 1 {
        let alone: Vec<String> = lines.iter().map(|line| line_range(line, largest)).collect();
        words += &format!(" With one line's counts alone: {}.", alone.join("; "));
    }
    if *lines_left > 0 {
        words += &format!(" {} not run alone.", count(*lines_left, "more line"));
    }
    words
}

/// Describes how the peak changes if operators such as `nonzero` return the smallest counts at
/// `line`, and the largest counts elsewhere.
fn line_range(LineRange { line, end }: &LineRange, largest: &RangeEnd) -> String {
    let most = match end.counts {
        Counts::Largest => "the largest".to_owned(),
        Counts::AtMost(most) => most.to_string(),
    };
    let (now, before) = (end.allocated.unwrap_or(0), largest.allocated.unwrap_or(0));
    let moved = match end.outcome {
        Outcome::NoVerdict(_) => "does not complete".to_owned(),
        _ if now < before => format!("{} less allocated", Amount(before - now)),
        _ if now > before => format!("{} more allocated", Amount(now - before)),
        _ => "as much allocated".to_owned(),
    };
    format!("{most} at {}, {moved}", short(line))
}

fn batch_sentence(batch: &Batch) -> String {
    let Batch { variable, least, most, .. } = batch;
    let mut sentences = Vec::new();
    for of_card in batch.found.chunk_by(|one, other| one.card == other.card) {
        let with = |found: &Found| {
            let with = found.with.iter().map(|(name, value)| format!(" {name}={value}"));
            let with: String = with.collect();
            if with.is_empty() { with } else { format!(" with{with}") }
        };
        let card = &of_card[0].card;
        let of = |found: &Found| {
            let value = found.largest?;
            let asked = if value == *most { ", the largest that was asked for" } else { "" };
            let asked = if found.with.is_empty() { asked } else { "" };
            Some(format!("{variable}={value}{}{asked}", with(found)))
        };
        let fits: Vec<String> = of_card.iter().filter_map(of).collect();
        if !fits.is_empty() {
            sentences.push(format!("It fits on {card} up to {}.", fits.join(", ")));
        }
        let fails = of_card.iter().find(|found| found.largest.is_none());
        sentences.extend(fails.map(|found| {
            format!("It does not fit on {card} with {variable}={least}{}.", with(found))
        }));
    }
    sentences.extend(margin(batch));
    sentences.push(format!("{} tried.", count(batch.runs, "run")));
    sentences.join(" ")
}

/// Returns a sentence about the memory that the largest batch sizes leave free; `None` if it is 0.
fn margin(batch: &Batch) -> Option<String> {
    let free = batch.found.iter().filter(|found| found.largest.is_some() && found.margin > 0);
    let mut free: Vec<String> =
        free.map(|found| format!("{} of {}", Amount(found.margin), found.card)).collect();
    free.dedup();
    let percent = (batch.margin * 1000.0).round() / 10.0;
    let words = format!("A margin of {percent} % is left ({}), see --margin.", free.join(", "));
    (!free.is_empty()).then_some(words)
}

fn table(text: &mut String, verdict: &Verdict) {
    if verdict.cards.iter().all(|card| card.outcome == Outcome::NoVerdict(Reason::NoGpuUsed)) {
        return;
    }
    let rows: Vec<Row> = verdict.cards.iter().flat_map(|card| rows(card, verdict)).collect();
    let width = rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0).clamp(12, 26);
    let head = ["allocated", "reserved", "in use", "of"].map(|title| format!(" {title:>11}"));
    line(text, format_args!("{:<width$} {:<4}{}", "card", "fits", head.concat()));
    for Row { name, fits, figures } in &rows {
        let figures = figures.each_ref().map(|figure| format!(" {figure:>11}"));
        line(text, format_args!("{name:<width$} {fits:<4}{}", figures.concat()));
    }
    let estimated = match verdict.cards.iter().any(|card| card.is_estimated) {
        true => " ~: an estimate, as is the card's context.",
        false => "",
    };
    let replayed = match verdict.cards.iter().any(|card| card.is_replayed) {
        true => " Cards without figures: by a replay of the first one's trace.",
        false => "",
    };
    let processes = verdict.cards.iter().flat_map(|card| &card.processes);
    let of = match processes.map(|process| process.steps).max().unwrap_or(0) {
        0 => String::new(),
        steps => format!(" of {}", count(steps, "optimiser step")),
    };
    let is_open = |device: &DeviceVerdict| {
        verdict.devices > 1 && device.outcome == Outcome::NoVerdict(Reason::OtherDevice)
    };
    let open = match verdict.cards.iter().flat_map(|card| &card.devices).any(is_open) {
        true => " -: not known, as memory ran out on another device first.",
        false => "",
    };
    managed(text, verdict);
    let beside = "in use has the context, kernels and libraries too";
    paragraph(text, &format!("Peaks{of}; {beside}.{estimated}{replayed}{open}"));
    text.push('\n');
}

/// Adds a line with the highest peak of managed memory, for each card on which it was used.
fn managed(text: &mut String, verdict: &Verdict) {
    for card in &verdict.cards {
        let devices = card.processes.iter().flat_map(|process| &process.devices);
        let Some(most) = devices.max_by_key(|device| device.managed) else { continue };
        if let (Some(managed @ 1..), Some(demand)) = (most.managed, most.demand) {
            let words = format!(
                "{} at the peak, and {} together with the device's own.",
                Amount(managed),
                Amount(demand)
            );
            hanging(text, &format!("Managed memory on {}: ", card.card), "  ", &words);
        }
    }
}

/// Row of the table of cards. The figures are allocated, reserved and used memory, and the card's
/// memory, in bytes.
struct Row {
    name: String,
    fits: &'static str,
    figures: [String; 4],
}

/// Returns a word of at most four characters for an outcome.
fn fits(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Fits => "yes",
        Outcome::FitsAsFarAsKnown => "yes?",
        Outcome::Oversubscribed | Outcome::DoesNotFit => "no",
        Outcome::NoVerdict(_) => "-",
    }
}

/// Returns the table's rows for one GPU model. If the run had several GPUs, there is a row for each
/// GPU that was used; otherwise, there is a row for each process.
fn rows(card: &CardResult, verdict: &Verdict) -> Vec<Row> {
    let fits = fits(card.outcome);
    let mark = if card.is_estimated { "~" } else { "" };
    let total = format!("{mark}{}", Amount(card.total));
    let amount =
        |bytes: Option<u64>| bytes.map_or(String::new(), |bytes| Amount(bytes).to_string());
    let processes = card.processes.iter();
    let used: Vec<(&ProcessResult, &DeviceResult)> = processes
        .flat_map(|process| process.devices.iter().map(move |device| (process, device)))
        .collect();
    let figures = |device: &DeviceResult| {
        let DeviceResult { allocated, reserved, in_use, .. } = device;
        [amount(*allocated), amount(*reserved), amount(*in_use), total.clone()]
    };
    if verdict.devices > 1 && !card.devices.is_empty() {
        let name = on_all(verdict.devices, &card.card);
        let mut rows = vec![Row { name, fits, figures: Default::default() }];
        rows.extend(card.devices.iter().flat_map(|device| device_rows(device, &used, &total)));
        return rows;
    }
    match used[..] {
        [] => {
            let figures = [String::new(), String::new(), String::new(), total];
            vec![Row { name: card.card.clone(), fits, figures }]
        }
        [(_, device)] => vec![Row { name: card.card.clone(), fits, figures: figures(device) }],
        _ => {
            let mut rows = vec![Row { name: card.card.clone(), fits, figures: Default::default() }];
            rows.extend(used.iter().take(ROWS).map(|(process, device)| Row {
                name: format!("  {}", row_name(process, device)),
                fits: "",
                figures: figures(device),
            }));
            if used.len() > ROWS {
                let name = format!("  and {} more, in --json", used.len() - ROWS);
                rows.push(Row { name, fits: "", figures: Default::default() });
            }
            rows
        }
    }
}

/// Returns the table's rows for one of several devices. If the device has several processes, each
/// process gets a row too.
fn device_rows(
    device: &DeviceVerdict,
    used: &[(&ProcessResult, &DeviceResult)],
    total: &str,
) -> Vec<Row> {
    let amount =
        |bytes: Option<u64>| bytes.map_or(String::new(), |bytes| Amount(bytes).to_string());
    let of: Vec<_> = used.iter().filter(|(_, one)| one.number == device.number).collect();
    let allocated = |one: &DeviceResult| [amount(one.allocated), amount(one.reserved)];
    let whole = |[allocated, reserved]: [String; 2], name| Row {
        name,
        fits: fits(device.outcome),
        figures: [allocated, reserved, amount(device.peak), total.to_owned()],
    };
    if let [(_, one)] = of[..] {
        let name = format!("  device {}, {}", device.number, users(&device.users));
        return vec![whole(allocated(one), name)];
    }
    let mut rows = vec![whole(Default::default(), format!("  device {}", device.number))];
    rows.extend(of.iter().zip(&device.users).take(ROWS).map(|((_, one), user)| {
        let [allocated, reserved] = allocated(one);
        let name = format!("    {}", users(std::slice::from_ref(user)));
        Row { name, fits: "", figures: [allocated, reserved, String::new(), String::new()] }
    }));
    if of.len() > ROWS {
        let name = format!("    and {} more, in --json", of.len() - ROWS);
        rows.push(Row { name, fits: "", figures: Default::default() });
    }
    rows
}

fn row_name(process: &ProcessResult, device: &DeviceResult) -> String {
    match &process.rank {
        Some(rank) => format!("rank {rank}"),
        None => format!("device {}, pid {}", device.device, process.pid),
    }
}

/// Describes the first failed request on each card, and how the program ended if it failed.
fn failed(text: &mut String, verdict: &Verdict) {
    for card in &verdict.cards {
        let process = card.processes.iter().find(|process| process.failed > 0);
        let failure = process.and_then(|process| Some((process, process.failures.first()?)));
        if let Some((process, failure)) = failure {
            let title = match verdict.devices {
                1 => format!("Out of memory on {}: ", card.card),
                _ => {
                    let mut devices = process.devices.iter();
                    let device = devices.find(|one| one.device == failure.device);
                    let number = device.map_or(failure.device, |one| one.number);
                    let user = User { pid: process.pid, rank: process.rank.clone() };
                    let user = users(&[user]);
                    format!("Out of memory on device {number} of {}, {user}: ", card.card)
                }
            };
            let lines = match failure.lines.is_empty() {
                true => String::new(),
                false => {
                    let lines: Vec<&str> = failure.lines.iter().map(|line| short(line)).collect();
                    format!(" at {}", lines.join(", called from "))
                }
            };
            let step =
                if process.steps > 0 { format!(" in step {}", failure.step) } else { "".into() };
            let caught = match card.outcome {
                outcome if outcome.is_fit() => " The program caught it and went on.",
                _ => "",
            };
            let words = format!(
                "{} was requested{step}{lines}, with {} allocated and {} reserved.{caught}",
                Amount(failure.requested),
                Amount(failure.allocated),
                Amount(failure.reserved)
            );
            hanging(text, &title, "  ", &words);
        }
        refused(text, card);
        if card.outcome == Outcome::NoVerdict(Reason::Failed) {
            let end = match card.ended {
                Some(Ended::Exit(code)) => format!("it ended with exit code {code}."),
                Some(Ended::Signal(signal)) => {
                    format!("signal {signal}{} ended it.", signal_name(signal))
                }
                Some(Ended::TimeLimit | Ended::Interrupted) | None => "it did not end.".to_owned(),
            };
            let is_refused = |note: &String| note.contains("refused");
            let refused = match verdict.unknown.libraries.iter().any(is_refused) {
                true => " Calls were refused before: see Not known.",
                false if verdict.unknown.reads > 0 => {
                    " Results are chosen, which a check by the program may refuse."
                }
                false => "",
            };
            hanging(text, &format!("Failed on {}: ", card.card), "  ", &format!("{end}{refused}"));
            for one in card.errors.lines() {
                line(text, format_args!("  | {one}"));
            }
        }
    }
}

/// Appends to `text` the requests that the driver refused on a card. Requests that made memory run
/// out come first.
fn refused(text: &mut String, card: &CardResult) {
    let all = || card.processes.iter().flat_map(|process| &process.refused);
    let mut decisive = all().filter(|refusal| refusal.is_decisive);
    if let Some(first) = decisive.next() {
        // The program ignored the error, or printed it and ended.
        let unchecked = match card.ended {
            Some(Ended::Exit(0)) => " The program ended with exit code 0 all the same.",
            _ => "",
        };
        let more = match decisive.count() {
            0 => String::new(),
            more => format!(" --json has {more} more."),
        };
        let words = format!("{}.{unchecked}{more}", request(first));
        hanging(text, &format!("Out of memory on {}: ", card.card), "  ", &words);
    } else if card.outcome == Outcome::DoesNotFit && has_too_much_managed(card) {
        let words = "with its managed memory the program has more than the device, which Windows does \
                     not allow, nor WSL2.";
        hanging(text, &format!("Out of memory on {}: ", card.card), "  ", words);
    }
    let mut shown: Vec<&Refusal> = Vec::new();
    // PyTorch's refused requests are left out, because its allocator empties the cache and repeats
    // a request. If the repeated request fails, it is shown elsewhere.
    let is_of_program = |refusal: &&Refusal| refusal.library != PYTORCH && !refusal.is_decisive;
    for refusal in all().filter(is_of_program).take(REFUSALS) {
        // Shows only the first refusal from the same lines: a loop may have tried several sizes.
        if shown.iter().any(|other| other.lines == refusal.lines && other.then == refusal.then) {
            continue;
        }
        shown.push(refusal);
        let then = match (refusal.then, refusal.granted) {
            (Then::Less, Some(bytes)) => format!("The program took {} instead.", Amount(bytes)),
            (Then::Repeated, _) => "The program repeated it, and got the memory.".to_owned(),
            (Then::Step, _) => "The program did another optimiser step.".to_owned(),
            _ => format!("{} went on without it.", refusal.library),
        };
        let title = format!("Refused on {}: ", card.card);
        hanging(text, &title, "  ", &format!("{}. {then}", request(refusal)));
    }
}

/// Returns `true` if managed memory and device memory together exceeded a device's memory.
fn has_too_much_managed(card: &CardResult) -> bool {
    let mut devices = card.processes.iter().flat_map(|process| &process.devices);
    devices.any(|device| device.managed > Some(0) && device.demand > Some(card.total))
}

/// Describes a refused request, without a full stop.
fn request(refusal: &Refusal) -> String {
    let lines: Vec<&str> = refusal.lines.iter().map(|line| short(line)).collect();
    let at = match lines.is_empty() {
        true => String::new(),
        false => format!(" at {}", lines.join(", called from ")),
    };
    let times = match refusal.times {
        0 | 1 => String::new(),
        times => format!(" {}", count(times, "time")),
    };
    format!(
        "{} of {} was refused{times}{at}, with {} free",
        refusal.function,
        Amount(refusal.requested),
        Amount(refusal.free)
    )
}

/// Returns the name of a signal that ends programs, and its likely reason.
fn signal_name(signal: i32) -> &'static str {
    match signal {
        4 => " (SIGILL)",
        6 => " (SIGABRT)",
        7 => " (SIGBUS)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL, as if host memory runs out)",
        11 => " (SIGSEGV)",
        15 => " (SIGTERM)",
        _ => "",
    }
}

fn at_peak(text: &mut String, peak: &Peak) {
    let step = peak.step.map(|step| format!(" in step {step}")).unwrap_or_default();
    let device =
        if peak.device > 0 { format!(" of device {}", peak.device) } else { String::new() };
    let held: Vec<String> = peak.holders.iter().take(HOLDERS).map(held).collect();
    let words = format!(
        "{} live{device}{step}, at event {} of {}. Held the most: {}",
        Amount(peak.live),
        grouped(peak.event),
        grouped(peak.events),
        held.join("; ")
    );
    hanging(text, "At the peak: ", "  ", &words);
    let join = |parts: Vec<String>| parts.join("; ");
    if !peak.kinds.is_empty() {
        let kinds = peak.kinds.iter().filter(|kind| kind.bytes > 0);
        let kinds = kinds.map(|kind| format!("{} {}", Amount(kind.bytes), kind_words(&kind.kind)));
        hanging(text, "By kind: ", "  ", &join(kinds.collect()));
    }
    if !peak.modules.is_empty() {
        let modules = peak.modules.iter().take(MODULES);
        let modules = modules.map(|one| {
            let most = one.kinds.iter().max_by_key(|(_, bytes)| **bytes);
            let most = most
                .map_or(String::new(), |(kind, _)| format!(", most of it {}", kind_words(kind)));
            format!("{} {}{most}", Amount(one.bytes), one.module)
        });
        hanging(text, "By module: ", "  ", &join(modules.collect()));
    }
}

/// Returns a holder of memory in words.
fn held(held: &Held) -> String {
    let caller = held.called_from.as_deref().map(|line| format!(", called from {}", short(line)));
    let module = held.module.as_deref().map(|module| format!(" in {module}"));
    let kind = held.kind.as_deref().map(|kind| format!(", {}", kind_words(kind)));
    format!(
        "{} {}{}{}{} ({})",
        Amount(held.bytes),
        short(&held.line),
        caller.unwrap_or_default(),
        module.unwrap_or_default(),
        kind.unwrap_or_default(),
        held.blocks
    )
}

/// Returns the words for a kind of memory.
pub(super) fn kind_words(kind: &str) -> &str {
    match kind {
        "optimiser_state" => "optimiser state",
        "backward" => "of the backward pass",
        "other" => "from before the recording",
        "fragmentation" => "fragmentation (reserved, without a live block)",
        "cuda" => "CUDA's own (context, kernels, libraries)",
        kind => kind,
    }
}

fn needs(text: &mut String, verdict: &Verdict) {
    let Some(needs) = &verdict.needs else {
        if let Some(bytes) = verdict.with_room {
            let words = format!("With room, it takes {} of a device.", Amount(bytes));
            paragraph(text, &words);
        }
        return;
    };
    let more = match needs.most > needs.least {
        true => format!(", and takes up to {} where there is room", Amount(needs.most)),
        false => String::new(),
    };
    let (major, minor) = needs.capability;
    let capability = format!("{major}.{minor}");
    let cards = match (needs.cards.is_empty(), verdict.is_lower_bound) {
        (true, true) => String::new(),
        (true, false) => {
            format!(" No card with compute capability {capability} is large enough.")
        }
        (false, _) => format!(
            " Smallest cards with compute capability {capability}, by a replay: {}.",
            needs.cards.join(", ")
        ),
    };
    let smaller = needs.smaller.as_ref().map_or(String::new(), |card| {
        format!(
            " By memory alone, {card} is enough. Libraries choose other kernels there, whose memory \
             only a run shows."
        )
    });
    let at_least = if verdict.is_lower_bound { "at least " } else { "" };
    let words = format!(
        "PyTorch needs {at_least}{:#} of a device{more}, and {} beside.{cards}{smaller}",
        Amount(needs.least),
        Amount(needs.beside),
    );
    paragraph(text, &words);
}

fn remedies(text: &mut String, verdict: &Verdict) {
    if verdict.remedies.is_empty() {
        return;
    }
    let makes_it_fit = verdict.remedies.iter().any(|remedy| remedy.makes_it_fit);
    let title = match (makes_it_fit, verdict.is_lower_bound) {
        (true, true) => "What would get it further, by a replay (figures are lower bounds):",
        (true, false) => "What would make it fit, by a replay:",
        (false, _) => "What would take less, by a replay:",
    };
    line(text, format_args!("{title}"));
    for (number, Remedy { line: code, reserved, .. }) in verdict.remedies.iter().enumerate() {
        let number = number + 1;
        line(text, format_args!("  {number}. export {code}"));
        if let Some(bytes) = reserved {
            line(text, format_args!("     takes {}", Amount(*bytes)));
        }
    }
}

/// Adds a table of the remedies that were run or estimated.
fn trials(text: &mut String, verdict: &Verdict) {
    if verdict.trials.is_empty() {
        return;
    }
    let width = verdict.trials.iter().map(|trial| trial.title.chars().count()).max().unwrap_or(0);
    let width = width.clamp(12, 44);
    line(text, format_args!("What each remedy gives, by running it with memory to spare:"));
    let head = format!("{:>11} {:>11} fits  smallest cards", "allocated", "in use");
    line(text, format_args!("  {:<width$} {head}", "remedy"));
    for trial in &verdict.trials {
        let ([allocated, in_use], fits) = trial_figures(trial);
        let cards = match trial.error.is_empty() {
            true => trial.cards.join(", "),
            false => format!("failed: {}", trial.error),
        };
        let title = &trial.title;
        let row = format!("  {title:<width$} {allocated:>11} {in_use:>11} {fits:<5} {cards}");
        line(text, format_args!("{}", row.trim_end()));
        line(text, format_args!("    {}", trial.line));
    }
    if verdict.trials.iter().any(|trial| trial.is_estimate) {
        line(text, format_args!("~: an estimate from the kinds of memory, without a run."));
    }
}

/// Describes the memory that benchmark mode adds, and the smallest card that is enough for it.
pub(super) fn benchmark_words(benchmark: &Benchmark) -> String {
    let raised = match (benchmark.with, benchmark.without) {
        (Some(with), Some(without)) => format!(
            "it raised the peak by {}, from {} to {} allocated.",
            Amount(with.saturating_sub(without)),
            Amount(without),
            Amount(with)
        ),
        _ => format!("it timed a plan with a workspace of {}.", Amount(benchmark.workspace)),
    };
    let smallest = match benchmark.smallest() {
        Some(run) => format!(
            " By running it there: it fits on {} too, with {} allocated.",
            run.card,
            Amount(run.allocated.unwrap_or(0))
        ),
        None => String::new(),
    };
    let fails = |run: &&BenchmarkRun| run.outcome == Outcome::DoesNotFit;
    let fails: Vec<&str> = benchmark.tried.iter().filter(fails).map(|run| &*run.card).collect();
    let fails = match fails.is_empty() {
        true => String::new(),
        false => format!(" It does not fit on {}.", fails.join(", ")),
    };
    format!("{raised} PyTorch gives way when memory is short.{smallest}{fails}")
}

/// Returns the figures of a trial (the program with a remedy) as texts: allocated memory, memory in
/// use, and whether the program fits.
pub(super) fn trial_figures(trial: &Trial) -> ([String; 2], &'static str) {
    let mark = if trial.is_estimate { "~" } else { "" };
    let figures = [trial.allocated, trial.in_use].map(|bytes| match bytes {
        Some(bytes) => format!("{mark}{}", Amount(bytes)),
        None => "-".to_owned(),
    });
    let fits = match trial.fits {
        Some(true) => "yes",
        Some(false) => "no",
        None => "-",
    };
    (figures, fits)
}

fn unknown(text: &mut String, unknown: &Unknown) {
    let mut parts = Vec::new();
    let lines = match unknown.lines.is_empty() {
        true => String::new(),
        false => format!(", most at {}", read_at(&unknown.lines)),
    };
    // Leaves out the phrases on results and kernels if the program read no results and launched no
    // kernels. Both counts are also 0 if the program wrote no report.
    if unknown.reads + unknown.launches > 0 {
        parts.push(format!(
            "results, which are chosen: the program read {}{lines}",
            count(unknown.reads, "result")
        ));
        parts.push(format!("memory of kernels: {} not run", launches_were(unknown.launches)));
    }
    if unknown.asked_for_free_memory > 0 {
        let times = count(unknown.asked_for_free_memory, "time");
        parts.push(format!("choices by free memory, which it asked for {times}"));
    }
    match (parts.is_empty(), unknown.libraries.is_empty()) {
        (true, true) => return,
        (true, false) => line(text, format_args!("Not known:")),
        (false, _) => hanging(text, "Not known: ", "  ", &format!("{}.", parts.join("; "))),
    }
    for note in unknown.libraries.iter().take(LIBRARIES) {
        hanging(text, "  ", "    ", note);
    }
    if unknown.libraries.len() > LIBRARIES {
        let more = unknown.libraries.len() - LIBRARIES;
        line(text, format_args!("  and {} more lines, in --json", grouped(more as u64)));
    }
}

/// Returns a location, such as `train.py:41 in step`, without the folder of its file.
pub(super) fn short(line: &str) -> &str {
    let file = line.split(':').next().unwrap_or_default();
    &line[file.rfind('/').map_or(0, |at| at + 1)..]
}

fn launches_were(launches: u64) -> String {
    match launches {
        1 => "1 launch was".to_owned(),
        _ => format!("{} launches were", grouped(launches)),
    }
}
