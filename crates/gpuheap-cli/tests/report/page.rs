//! Opens the page of `--format html` in a headless Chromium. Tests that it draws and has no errors,
//! and that a click on the timeline changes the table. If there is no Chromium, these tests print
//! that they are skipped, and pass. With `GPUHEAP_TEST_CHROMIUM=required`, they fail instead.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpuheap_trace::MemoryKind;
use gpuheap_trace::capture::{Address, CaptureWriter, Record, Time};
use serde_json::Value;

use crate::{report, root};

/// Script that collects errors. It is inserted at the start of the page.
const COLLECT: &str = "<script>
window.errors = [];
console.error = (...parts) => window.errors.push(parts.join(' '));
addEventListener('error', (event) => window.errors.push(String(event.message)));
addEventListener('unhandledrejection', (event) => window.errors.push(String(event.reason)));
</script>";

/// Script that clicks like a user, and writes its findings into the page.
const CLICK: &str = "<script>{
const inked = (id) => {
  const canvas = document.getElementById(id);
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  const colours = new Set();
  for (let at = 0; at < data.length; at += 4) colours.add(data.slice(at, at + 4).join());
  return colours.size;
};
const rows = () => [...document.querySelectorAll('#table tbody tr')].map((row) => row.textContent);
const heads = () => [...document.querySelectorAll('#table th')].map((head) => head.textContent);
const text = (id) => document.getElementById(id).textContent;
const click = (id) => document.getElementById(id).click();
const over = () => document.querySelector('.u-over');
const mouse = (name, share) => {
  const box = over().getBoundingClientRect();
  const at = { clientX: box.left + box.width * share, clientY: box.top + 50, bubbles: true, movementX: 9 };
  over().dispatchEvent(new MouseEvent(name, at));
};
const poll = setInterval(() => {
  if (!document.body.dataset.ready && !window.errors.length) return;
  clearInterval(poll);
  const found = { peak: text('moment'), rows: rows(), flames: inked('flames'), map: inked('map') };
  found.heads = heads();
  found.first_title = text('flames-title');
  found.series = plot.series.length;
  click('go-end');
  found.end = text('moment');
  click('unpin');
  click('go-peak');
  click('pin');
  mouse('click', 0.1);
  found.moment = text('moment');
  found.rows_after = rows();
  found.difference = text('flames-title');
  click('unpin');
  const search = document.getElementById('search');
  search.value = rows()[0].slice(-12);
  search.dispatchEvent(new Event('input'));
  found.rows_found = rows();
  search.value = '';
  search.dispatchEvent(new Event('input'));
  document.querySelector('#table th').click();
  found.rows_sorted = rows();
  document.querySelector('#table th').click();
  found.rows_turned = rows();
  found.lanes = document.querySelectorAll('.lane').length;
  const axis = () => [plot.scales.x.min, plot.scales.x.max];
  // The chart draws after a script.
  setTimeout(() => {
    found.whole = axis();
    for (const [name, share] of [['mousedown', 0.2], ['mousemove', 0.3], ['mousemove', 0.4], ['mouseup', 0.4]]) {
      mouse(name, share);
    }
  }, 100);
  setTimeout(() => {
    found.zoomed = axis();
    found.errors = window.errors;
    const result = document.createElement('pre');
    result.id = 'result';
    result.textContent = JSON.stringify(found);
    document.body.append(result);
  }, 300);
}, 10);
}</script>";

/// Returns a browser of the machine.
fn chromium() -> Option<PathBuf> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path)
        .flat_map(|folder| names.map(|name| folder.join(name)))
        .find(|file| file.is_file());
    if found.is_none() {
        let words = "no Chromium on this machine, so the report's page was not opened";
        let is_required = std::env::var("GPUHEAP_TEST_CHROMIUM").is_ok_and(|is| is == "required");
        assert!(!is_required, "{words}; GPUHEAP_TEST_CHROMIUM is required");
        // Unlike `eprintln!`, this is not captured by the test harness.
        let mut stderr = std::io::stderr();
        writeln!(stderr, "SKIPPED: {words}").unwrap();
    }
    found
}

/// Opens the page of a report in Chromium, and returns the findings of the script [`CLICK`]; `None`
/// without a Chromium.
fn open(arguments: &[&str]) -> Option<Value> {
    let chromium = chromium()?;
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let output = ["--format", "html", "--output", page.to_str().unwrap()];
    let ran = report(&[arguments, &output].concat());
    assert_eq!((ran.code, ran.stdout), (0, format!("wrote {}\n", page.display())));
    let text = std::fs::read_to_string(&page).unwrap();
    let text = text.replacen("<style>", &format!("{COLLECT}<style>"), 1) + CLICK;
    std::fs::write(&page, text).unwrap();
    let run = Command::new(chromium)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,1200"])
        .args(["--disable-quic", "--no-first-run", "--disable-background-networking"])
        .args(["--disable-component-update", "--disable-sync"])
        .args(["--virtual-time-budget=30000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", folder.path().display()))
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    let dom = String::from_utf8_lossy(&run.stdout);
    let result = dom.rsplit_once("<pre id=\"result\">").expect("the page is ready").1;
    let result = result.split_once("</pre>").unwrap().0;
    let result = result.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    let found: Value = serde_json::from_str(&result).unwrap();
    assert_eq!(found["errors"], serde_json::json!([]));
    Some(found)
}

#[test]
fn click_on_timeline_changes_table() {
    let Some(found) = open(&["varied_oom.snapshot.pickle.gz"]) else { return };
    assert_eq!(found["peak"], "Peak: 4.36 GiB live at event 3,404, 4.751 s in");
    assert!(found["rows"][0].as_str().unwrap().starts_with("1.61 GiB"), "{}", found["rows"]);
    assert_ne!(found["rows"], found["rows_after"]);
    assert_ne!(found["peak"], found["moment"]);
    assert!(found["moment"].as_str().unwrap().contains("since event 3,404"));
    assert!(found["difference"].as_str().unwrap().contains("difference"));
    for canvas in ["flames", "map"] {
        assert!(found[canvas].as_u64().unwrap() > 3, "{canvas} is blank: {found}");
    }
}

#[test]
fn tables_search_and_sort() {
    let Some(found) = open(&["serve_threads.csv.gz"]) else { return };
    let rows = |name: &str| found[name].as_array().unwrap().clone();
    assert!(!rows("rows_found").is_empty());
    assert!(rows("rows_found").len() < rows("rows_sorted").len());
    // A click on the heading of the sorted column reverses the order.
    let mut turned = rows("rows_turned");
    assert_ne!(turned, rows("rows_sorted"));
    turned.reverse();
    assert_eq!(turned[0], rows("rows_sorted")[0]);
    assert!(!found["rows_sorted"][0].as_str().unwrap().contains("GiB"));
}

#[test]
fn drag_on_timeline_zooms() {
    let Some(found) = open(&["gpt_train_short.csv.gz"]) else { return };
    let span = |name: &str| found[name][1].as_f64().unwrap() - found[name][0].as_f64().unwrap();
    let share = span("zoomed") / span("whole");
    assert!((0.15..0.25).contains(&share), "{} of {}", found["zoomed"], found["whole"]);
}

#[test]
fn comparison_opens_with_difference() {
    let arguments = ["gpt_train_short.csv.gz", "--compare", "two_streams.csv.gz"];
    let Some(found) = open(&arguments) else { return };
    let (peak, end) = (found["peak"].as_str().unwrap(), found["end"].as_str().unwrap());
    assert!(peak.starts_with("Peak: ") && peak.ends_with(" of gpt_train_short.csv.gz"), "{peak}");
    assert!(end.starts_with("End: ") && end.ends_with(" of gpt_train_short.csv.gz"), "{end}");
    assert!(found["heads"][1].as_str().unwrap().starts_with("Change"), "{}", found["heads"]);
    assert!(found["first_title"].as_str().unwrap().contains("difference"));
    // The rows add up to the changes in the JSON report.
    let json = report(&[&arguments[..], &["--json"]].concat()).json();
    let changed = json[0]["at_moment"].as_array().unwrap().len();
    let is_changed = |row: &&Value| !row.as_str().unwrap().contains("B0 B");
    assert_eq!(found["rows"].as_array().unwrap().iter().filter(is_changed).count(), changed);
}

#[test]
fn capture_has_kinds_and_modules() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.gph");
    let mut writer = CaptureWriter::new(std::fs::File::create(&path).unwrap()).unwrap();
    let allocate = |time, thread, kind, stack| Record::Allocate {
        time: Time(time),
        thread,
        kind,
        device: 0,
        stream: 0,
        address: Address(time << 24),
        bytes: 4 << 20,
        stack,
    };
    let (start, end, base) = (0x1000, 0x2000, 0x1000);
    for record in [
        Record::Module { path: "/gone/libdecode.so", build_id: "", start, end, base },
        Record::Stack { addresses: vec![0x1101, 0x1201].into(), frames: vec![].into() },
        Record::Stack { addresses: vec![0x1301].into(), frames: vec![].into() },
        Record::ThreadStart { time: Time(0), id: 7, name: "</script><b>" },
        Record::ThreadStart { time: Time(0), id: 8, name: "worker" },
        allocate(1, 1, MemoryKind::Device, 1),
        allocate(2, 1, MemoryKind::Managed, 1),
        allocate(3, 2, MemoryKind::StreamOrdered, 2),
        Record::ThreadEnd { time: Time(4), thread: 2, name: "worker" },
    ] {
        writer.write(&record).unwrap();
    }
    let Some(found) = open(&[path.to_str().unwrap()]) else { return };
    let heads = ["Live ▾", "Share", "Blocks", "Kind", "Module", "Line of the program"];
    assert_eq!(found["heads"], serde_json::json!(heads));
    let rows = [
        "8 MiB66.7 %2device, managedlibdecode.solibdecode.so+0x100",
        "4 MiB33.3 %1stream-orderedlibdecode.solibdecode.so+0x300",
    ];
    assert_eq!(found["rows"], serde_json::json!(rows));
    assert_eq!(found["lanes"], 2);
}

#[test]
fn page_has_no_way_out() {
    let ran = report(&["two_streams.csv.gz", "--format", "html", "--output", "-"]);
    assert_eq!((ran.code, &*ran.stderr), (0, ""));
    assert!(ran.stdout.contains("default-src 'none'"));
    for tag in ["<link", "<img", "<iframe", " src=", "fetch(", "XMLHttpRequest", "import("] {
        assert!(!ran.stdout.contains(tag), "{tag}");
    }
    assert!(ran.stdout.contains("Permission is hereby granted"), "the licence of uPlot");
    assert!(!Path::new(&root().join("examples/traces/two_streams-report.html")).exists());
}
