//! The page of `--format html` in a headless Chromium: it draws, it has no errors, and a click on
//! the timeline changes the table. Without a Chromium these tests say so and pass.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::{report, root};

/// Collects errors from the start of the page on.
const COLLECT: &str = "<script>
window.errors = [];
console.error = (...parts) => window.errors.push(parts.join(' '));
addEventListener('error', (event) => window.errors.push(String(event.message)));
addEventListener('unhandledrejection', (event) => window.errors.push(String(event.reason)));
</script>";

/// Clicks like a user, and writes the findings into the page.
const CLICK: &str = "<script>{
const inked = (id) => {
  const canvas = document.getElementById(id);
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  const colours = new Set();
  for (let at = 0; at < data.length; at += 4) colours.add(data.slice(at, at + 4).join());
  return colours.size;
};
const rows = () => [...document.querySelectorAll('#table tbody tr')].map((row) => row.textContent);
const text = (id) => document.getElementById(id).textContent;
const poll = setInterval(() => {
  if (!document.body.dataset.ready && !window.errors.length) return;
  clearInterval(poll);
  const found = { peak: text('moment'), rows: rows(), flames: inked('flames'), map: inked('map') };
  const over = document.querySelector('.u-over');
  const box = over.getBoundingClientRect();
  const at = { clientX: box.left + box.width * 0.1, clientY: box.top + 50, bubbles: true };
  document.getElementById('pin').click();
  over.dispatchEvent(new MouseEvent('click', at));
  found.moment = text('moment');
  found.rows_after = rows();
  found.difference = text('flames-title');
  document.getElementById('unpin').click();
  const search = document.getElementById('search');
  search.value = rows()[0].slice(-12);
  search.dispatchEvent(new Event('input'));
  found.rows_found = rows();
  search.value = '';
  search.dispatchEvent(new Event('input'));
  document.querySelector('#table th').click();
  found.rows_sorted = rows();
  found.lanes = document.querySelectorAll('.lane').length;
  found.errors = window.errors;
  const result = document.createElement('pre');
  result.id = 'result';
  result.textContent = JSON.stringify(found);
  document.body.append(result);
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
        // Not captured by the test's harness.
        let words = "SKIPPED: no Chromium on this machine, so the report's page was not opened";
        let mut stderr = std::io::stderr();
        writeln!(stderr, "{words}").unwrap();
    }
    found
}

/// Opens the page of a trace, and returns the findings. `None` without a Chromium.
fn open(trace: &str) -> Option<Value> {
    let chromium = chromium()?;
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let ran = report(&[trace, "--format", "html", "--output", page.to_str().unwrap()]);
    assert_eq!((ran.code, ran.stdout), (0, format!("wrote {}\n", page.display())));
    let text = std::fs::read_to_string(&page).unwrap();
    let text = text.replacen("<style>", &format!("{COLLECT}<style>"), 1) + CLICK;
    std::fs::write(&page, text).unwrap();
    let run = Command::new(chromium)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,1200"])
        .args(["--virtual-time-budget=30000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", folder.path().display()))
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    let dom = String::from_utf8_lossy(&run.stdout);
    let result = dom.rsplit_once("<pre id=\"result\">").expect("the page is ready").1;
    let result = result.split_once("</pre>").unwrap().0;
    let result = result.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    Some(serde_json::from_str(&result).unwrap())
}

#[test]
fn click_on_timeline_changes_table() {
    let Some(found) = open("varied_oom.snapshot.pickle.gz") else { return };
    assert_eq!(found["errors"], serde_json::json!([]));
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
    let Some(found) = open("serve_threads.csv.gz") else { return };
    assert_eq!(found["errors"], serde_json::json!([]));
    let count = |name: &str| found[name].as_array().unwrap().len();
    assert!(count("rows_found") > 0 && count("rows_found") < count("rows_sorted"));
    let mut sorted: Vec<_> = found["rows_sorted"].as_array().unwrap().clone();
    sorted.reverse();
    assert_eq!(sorted.len(), count("rows_sorted"));
    // A click on the heading of the sorted column turns the order around.
    assert!(!found["rows_sorted"][0].as_str().unwrap().contains("GiB"));
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
