// Names of the success criteria of WCAG 2.0 to 2.2, which scanners write as tags like `wcag143`.

// By guideline, in order; the digit is the number of A in the level. Those of level AAA are left unnamed for size.
const CRITERIA = `1.1 1Non-text Content
1.2 1Audio-only and Video-only (Prerecorded)|1Captions (Prerecorded)|1Audio Description or Media Alternative (Prerecorded)|2Captions (Live)|2Audio Description (Prerecorded)|3|3|3|3
1.3 1Info and Relationships|1Meaningful Sequence|1Sensory Characteristics|2Orientation|2Identify Input Purpose|3
1.4 1Use of Color|1Audio Control|2Contrast (Minimum)|2Resize Text|2Images of Text|3|3|3|3|2Reflow|2Non-text Contrast|2Text Spacing|2Content on Hover or Focus
2.1 1Keyboard|1No Keyboard Trap|3|1Character Key Shortcuts
2.2 1Timing Adjustable|1Pause, Stop, Hide|3|3|3|3
2.3 1Three Flashes or Below Threshold|3|3
2.4 1Bypass Blocks|1Page Titled|1Focus Order|1Link Purpose (In Context)|2Multiple Ways|2Headings and Labels|2Focus Visible|3|3|3|2Focus Not Obscured (Minimum)|3|3
2.5 1Pointer Gestures|1Pointer Cancellation|1Label in Name|1Motion Actuation|3|3|2Dragging Movements|2Target Size (Minimum)
3.1 1Language of Page|2Language of Parts|3|3|3|3
3.2 1On Focus|1On Input|2Consistent Navigation|2Consistent Identification|3|1Consistent Help
3.3 1Error Identification|1Labels or Instructions|2Error Suggestion|2Error Prevention (Legal, Financial, Data)|3|3|1Redundant Entry|2Accessible Authentication (Minimum)|3
4.1 1Parsing|1Name, Role, Value|2Status Messages`;

/** Return a tag as people read it: `wcag143` as "1.4.3 Contrast (Minimum) · AA", axe's `wcag21a` as "WCAG 2.1 A". */
export function tagName(tag) {
	const [, minor = 0, level] = /^wcag2([12])?(a{1,3})$/i.exec(tag) ?? [];
	if (level) return `WCAG 2.${minor} ${level.toUpperCase()}`;
	const [, principle, guideline, number] = /^(?:wcag[ _-]*|(?=\d\.\d\.))(\d)\.?(\d)\.?(\d\d?)$/i.exec(tag) ?? [];
	const line = CRITERIA.split("\n").find((each) => each.startsWith(`${principle}.${guideline} `));
	const found = line?.slice(4).split("|")[number - 1];
	return found ? `${principle}.${guideline}.${Number(number)}${found.replace(/^\d/, " ").trimEnd()} · ${"A".repeat(found[0])}` : tag;
}
