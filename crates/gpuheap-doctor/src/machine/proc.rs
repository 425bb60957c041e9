//! Parses files of `/proc` and `/etc`. A missing or garbled field is `None` or zero.

/// Fields of `/proc/PID/stat` that rules need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) comm: String,
    pub(super) state: char,
    pub(super) parent: u32,
    pub(super) group: u32,
    pub(super) session: u32,
    pub(super) terminal: i64,
    pub(super) busy_ticks: u64,
    pub(super) threads: u64,
    pub(super) start_ticks: u64,
}

impl Stat {
    /// Parses the line. The name is in parentheses and may hold any character, so the last
    /// parenthesis ends the name.
    pub(super) fn parse(line: &str) -> Option<Stat> {
        let open = line.find('(')?;
        let close = line.rfind(')').filter(|&close| close > open)?;
        let fields: Vec<&str> = line[close + 1..].split_whitespace().collect();
        let number = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok());
        Some(Stat {
            comm: line[open + 1..close].to_owned(),
            state: fields.first()?.chars().next()?,
            parent: fields.get(1)?.parse().ok()?,
            group: fields.get(2).and_then(|field| field.parse().ok()).unwrap_or(0),
            session: fields.get(3).and_then(|field| field.parse().ok()).unwrap_or(0),
            terminal: fields.get(4).and_then(|field| field.parse().ok()).unwrap_or(0),
            busy_ticks: number(11).unwrap_or(0).saturating_add(number(12).unwrap_or(0)),
            threads: number(17).unwrap_or(1),
            start_ticks: number(19).unwrap_or(0),
        })
    }
}

/// Returns the first 12 digits of the container id in a control group's name.
pub(super) fn container(cgroup: &str) -> Option<String> {
    let id = cgroup
        .split(['/', '-', '.', ':'])
        .rfind(|part| part.len() == 64 && part.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
    Some(id[..12].to_owned())
}

/// Returns a user's name from the text of `/etc/passwd`. If the text does not contain the user,
/// returns the user's number.
pub(super) fn user_name(passwd: &str, uid: u32) -> String {
    let name = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    });
    name.unwrap_or_else(|| uid.to_string())
}

/// Returns a field of `/proc/meminfo`, in bytes.
pub(super) fn meminfo(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the mount option `hidepid` of `/proc` from the text of `/proc/self/mountinfo`. Returns 0
/// if the option is not set.
pub(super) fn hidepid(mountinfo: &str) -> u32 {
    let Some(line) = mountinfo.lines().find(|line| {
        let mut fields = line.split_whitespace();
        fields.nth(4) == Some("/proc") && line.contains(" - proc ")
    }) else {
        return 0;
    };
    let value = line.split([' ', ',']).find_map(|option| option.strip_prefix("hidepid="));
    match value {
        Some("invisible" | "2") => 2,
        Some("noaccess" | "1") => 1,
        Some("ptraceable" | "4") => 4,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_name_may_have_parentheses() {
        let line = "42 (a) b (c) S 7 8 9 34816 -1 0 0 0 0 0 11 22 0 0 20 0 5 0 77 1 2";
        let stat = Stat::parse(line).unwrap();
        assert_eq!(stat.comm, "a) b (c");
        assert_eq!((stat.state, stat.parent, stat.group, stat.session), ('S', 7, 8, 9));
        assert_eq!((stat.terminal, stat.busy_ticks), (34816, 33));
        assert_eq!((stat.threads, stat.start_ticks), (5, 77));
        for garbled in ["", "42", "42 )(", "42 (x) ", "42 (x) S y"] {
            assert_eq!(Stat::parse(garbled), None, "{garbled}");
        }
    }

    #[test]
    fn container_is_found_for_every_runtime() {
        let id = "0123456789abcdef".repeat(4);
        for path in [
            format!("0::/docker/{id}"),
            format!("0::/system.slice/docker-{id}.scope"),
            format!("0::/kubepods.slice/cri-containerd-{id}.scope"),
            format!("0::/user.slice/libpod-{id}.scope/container"),
        ] {
            assert_eq!(container(&path).as_deref(), Some("0123456789ab"), "{path}");
        }
        assert_eq!(container("0::/user.slice/user-1000.slice/session-2.scope"), None);
    }

    #[test]
    fn hidepid_is_read_from_mounts() {
        let mounted =
            |options: &str| format!("22 27 0:20 / /proc rw,nosuid - proc proc rw{options}\n");
        assert_eq!(hidepid(&mounted("")), 0);
        assert_eq!(hidepid(&mounted(",hidepid=2")), 2);
        assert_eq!(hidepid(&mounted(",gid=4,hidepid=invisible")), 2);
    }
}
