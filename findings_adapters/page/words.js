// Names of values, and formats of numbers and dates.

export const SEVERITIES = ["critical", "high", "medium", "low", "info"];
export const STATUS_NAMES = { open: "Open", in_progress: "In progress", resolved: "Resolved", dismissed: "Dismissed" };
export const STATUSES = Object.keys(STATUS_NAMES);
export const UNRESOLVED = "open,in_progress";
export const REASONS = {
	false_positive: "False positive",
	accepted_risk: "Accepted risk",
	wont_fix: "Won't fix",
	used_in_tests: "Used in tests",
	duplicate: "Duplicate",
	fixed: "Fixed",
};
export const REASONS_FOR = {
	resolved: ["fixed", "duplicate", ""],
	dismissed: ["false_positive", "accepted_risk", "wont_fix", "used_in_tests", "duplicate", ""],
};
export const OUTCOMES = { fixed: "Verified as fixed", still_present: "Still present", inconclusive: "Inconclusive" }; // of verifications
export const YES_OR_NO = { true: "yes", false: "no" };
export const RUN_NAMES = { running: "Running", completed: "Completed", failed: "Failed" };

const NUMBER = new Intl.NumberFormat("en");
const MOMENT = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "short" });
const UNITS = [["y", 31_557_600], ["mo", 2_629_800], ["d", 86_400], ["h", 3_600], ["min", 60]];

export const number = (value) => NUMBER.format(value);
export const count = (value, one, many = `${one}s`) => `${number(value)} ${value === 1 ? one : many}`;
export const moment = (at) => MOMENT.format(new Date(at));
export const capital = (word) => word.charAt(0).toUpperCase() + word.slice(1);

/** Cut untrusted text, without characters that change the direction of text around it. */
export function cut(text, length) {
	const plain = text.replace(/\p{Bidi_C}/gu, "");
	const short = plain.length > length ? `${plain.slice(0, length - 1)}…` : plain;
	return /[\u0590-\u08ff]/.test(short) ? `\u2068${short}\u2069` : short;
}

/** Name the findings of a decision; they may still be loading. */
export const object = (tasks) => tasks.label ?? (tasks.length === 1 && tasks[0] ? `“${cut(tasks[0].title, 60)}”` : count(tasks.length, "finding"));

export function age(at, now = Date.now()) {
	const seconds = (now - Date.parse(at)) / 1000;
	const [name, length] = UNITS.find((unit) => seconds >= unit[1]) ?? [];
	return name ? `${Math.floor(seconds / length)} ${name}` : "now";
}

export const webAddress = (text) => (/^https?:\/\/\S+$/i.test(text) && URL.canParse(text) ? new URL(text) : null);

/** Return "1 Dec", with the year unless it is this year. `more` are further parts. */
export function day(at, more) {
	const date = new Date(at);
	const year = date.getFullYear() === new Date().getFullYear() ? undefined : "numeric";
	return date.toLocaleString("en-GB", { day: "numeric", month: "short", year, ...more });
}

/** Return "23 Nov, 20:07". */
export const minute = (at) => day(at, { hour: "2-digit", minute: "2-digit" });

/** Return "20:07" for a time of today, otherwise "23 Nov, 20:07". */
export const clock = (at) => minute(at).replace(`${day(Date.now())}, `, "");

/** Return the local date of a time as the value of a date field, such as "2026-12-01". */
export const dateValue = (at) => new Date(at).toLocaleDateString("sv-SE");

/** Return a proposed decision in words, such as "Dismiss as false positive until 1 Dec". */
export const decisionName = ({ status, reason, until }) =>
	`${status === "resolved" ? "Resolve" : "Dismiss"} as ${REASONS[reason].toLowerCase()}${until ? ` until ${day(until)}` : ""}`;

/** Return "5 s", "2 min 5 s" or "1 h 2 min". */
export function duration(milliseconds) {
	const seconds = Math.max(0, Math.floor(milliseconds / 1000));
	const minutes = Math.floor(seconds / 60);
	if (minutes >= 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
	return minutes ? `${minutes} min ${seconds % 60} s` : `${seconds} s`;
}
